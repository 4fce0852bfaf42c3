// SPDX-License-Identifier: Apache-2.0

// Package nvmltest tests the simulated NVML through go-nvml.
package nvmltest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	gib         = 1 << 30
	memoryBytes = 16 * gib
	gpuCount    = 2
)

// All tests share a machine, because the library opens the state once per process.
var (
	machineDir  string
	makeMachine sync.Once
)

func TestMain(m *testing.M) {
	if os.Getenv(lookVariable) != "" {
		os.Exit(look())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvmltest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	machineDir = filepath.Join(dir, "gpusim")
	os.Setenv("GPUSIM_STATE", filepath.Join(machineDir, "state"))
	return m.Run()
}

// start initialises NVML on the tests' machine, with no fault injected.
func start(t *testing.T) (nvml.Interface, *simtest.Machine) {
	t.Helper()
	makeMachine.Do(func() { simtest.NewAt(t, machineDir, gpuCount, memoryBytes) })
	machine := simtest.At(t, machineDir)
	library := nvml.New(nvml.WithLibraryPath(filepath.Join(machine.LibraryDir, "libnvidia-ml.so.1")))
	succeed(t, library.Init())
	t.Cleanup(func() {
		machine.Tool(t, "inject", "clear", machineDir)
		succeed(t, library.Shutdown())
	})
	return library, machine
}

func succeed(t *testing.T, result nvml.Return) {
	t.Helper()
	expect(t, result, nvml.SUCCESS)
}

func expect(t *testing.T, got, want nvml.Return) {
	t.Helper()
	if got != want {
		t.Fatalf("NVML returned %v, want %v", got, want)
	}
}

func deviceAt(t *testing.T, library nvml.Interface, index int) nvml.Device {
	t.Helper()
	device, result := library.DeviceGetHandleByIndex(index)
	succeed(t, result)
	return device
}

func TestInventory(t *testing.T) {
	library, machine := start(t)
	truth, err := oracle.Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	// The test never closes the oracle, because this process also uses NVML (see oracle.Open).
	gpus, err := truth.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	count, result := library.DeviceGetCount()
	succeed(t, result)
	if count != len(gpus) {
		t.Fatalf("%d devices, want %d", count, len(gpus))
	}
	for _, gpu := range gpus {
		device := deviceAt(t, library, gpu.Index)
		uuid, result := device.GetUUID()
		succeed(t, result)
		name, result := device.GetName()
		succeed(t, result)
		memory, result := device.GetMemoryInfo()
		succeed(t, result)
		minor, result := device.GetMinorNumber()
		succeed(t, result)
		index, result := device.GetIndex()
		succeed(t, result)
		got := oracle.GPU{Index: index, UUID: uuid, Name: name, PCIBusID: gpu.PCIBusID,
			Minor: uint32(minor), MemoryBytes: memory.Total, UsedBytes: memory.Used}
		if diff := cmp.Diff(gpu, got, cmpopts.IgnoreFields(oracle.GPU{}, "Busy", "ContextBytes")); diff != "" {
			t.Error(diff)
		}
		checkHandles(t, library, gpu)
		checkProperties(t, device)
	}
}

// checkHandles looks up a device in every other way.
func checkHandles(t *testing.T, library nvml.Interface, gpu oracle.GPU) {
	t.Helper()
	byUUID, result := library.DeviceGetHandleByUUID(gpu.UUID)
	succeed(t, result)
	byPCI, result := library.DeviceGetHandleByPciBusId(gpu.PCIBusID)
	succeed(t, result)
	pci, result := byUUID.GetPciInfo()
	succeed(t, result)
	text := make([]byte, 0, len(pci.BusId))
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	byLongPCI, result := library.DeviceGetHandleByPciBusId(string(text))
	succeed(t, result)
	for _, device := range []nvml.Device{byUUID, byPCI, byLongPCI} {
		index, result := device.GetIndex()
		succeed(t, result)
		if index != gpu.Index {
			t.Errorf("index %d, want %d", index, gpu.Index)
		}
	}
}

func checkProperties(t *testing.T, device nvml.Device) {
	t.Helper()
	architecture, result := device.GetArchitecture()
	succeed(t, result)
	major, minor, result := device.GetCudaComputeCapability()
	succeed(t, result)
	attributes, result := device.GetAttributes()
	succeed(t, result)
	cores, result := device.GetNumGpuCores()
	succeed(t, result)
	if architecture != nvml.DEVICE_ARCH_HOPPER || major != 9 || minor != 0 {
		t.Errorf("architecture %d, compute capability %d.%d", architecture, major, minor)
	}
	if attributes.MultiprocessorCount != 132 || cores != 132*128 || attributes.MemorySizeMB != memoryBytes>>20 {
		t.Errorf("attributes %+v, %d cores", attributes, cores)
	}
	current, pending, result := device.GetMigMode()
	succeed(t, result)
	isMig, result := device.IsMigDeviceHandle()
	succeed(t, result)
	if current != nvml.DEVICE_MIG_DISABLE || pending != nvml.DEVICE_MIG_DISABLE || isMig {
		t.Errorf("MIG: current %d, pending %d, handle %v", current, pending, isMig)
	}
	memory, result := device.GetMemoryInfo_v2()
	succeed(t, result)
	if memory.Total != memoryBytes || memory.Free != memoryBytes {
		t.Errorf("memory v2 %+v", memory)
	}
	temperature, result := device.GetTemperature(nvml.TEMPERATURE_GPU)
	succeed(t, result)
	power, result := device.GetPowerUsage()
	succeed(t, result)
	limit, result := device.GetEnforcedPowerLimit()
	succeed(t, result)
	clock, result := device.GetClockInfo(nvml.CLOCK_SM)
	succeed(t, result)
	if temperature == 0 || power == 0 || power > limit || clock == 0 {
		t.Errorf("temperature %d, power %d of %d, clock %d", temperature, power, limit, clock)
	}
}

func TestSystem(t *testing.T) {
	library, _ := start(t)
	driver, result := library.SystemGetDriverVersion()
	succeed(t, result)
	cuda, result := library.SystemGetCudaDriverVersion()
	succeed(t, result)
	own, result := library.SystemGetNVMLVersion()
	succeed(t, result)
	if driver != "580.159.04" || cuda != 13000 || own != "13.580.159.04" {
		t.Errorf("driver %q, CUDA %d, NVML %q", driver, cuda, own)
	}
	if got := library.ErrorString(nvml.ERROR_GPU_IS_LOST); got == "" {
		t.Error("no text for an error")
	}
}

func TestUnknownDevices(t *testing.T) {
	library, _ := start(t)
	_, result := library.DeviceGetHandleByIndex(gpuCount)
	expect(t, result, nvml.ERROR_INVALID_ARGUMENT)
	_, result = library.DeviceGetHandleByUUID("GPU-none")
	expect(t, result, nvml.ERROR_NOT_FOUND)
	_, result = library.DeviceGetHandleByPciBusId("0000:ff:00.0")
	expect(t, result, nvml.ERROR_NOT_FOUND)
}

func TestInitIsCounted(t *testing.T) {
	library, _ := start(t)
	succeed(t, library.Init())
	succeed(t, library.Shutdown())
	_, result := library.DeviceGetCount()
	succeed(t, result)
}

func TestModes(t *testing.T) {
	library, _ := start(t)
	device := deviceAt(t, library, 0)
	mode, result := device.GetComputeMode()
	succeed(t, result)
	if mode != nvml.COMPUTEMODE_DEFAULT {
		t.Errorf("compute mode %d", mode)
	}
	expect(t, device.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD), nvml.ERROR_INVALID_ARGUMENT)
	if os.Geteuid() == 0 {
		succeed(t, device.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
		mode, result = device.GetComputeMode()
		succeed(t, result)
		if mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
			t.Errorf("compute mode %d, want exclusive", mode)
		}
		succeed(t, device.SetComputeMode(nvml.COMPUTEMODE_DEFAULT))
	}
	persistence, result := device.GetPersistenceMode()
	succeed(t, result)
	if persistence != nvml.FEATURE_ENABLED {
		t.Errorf("persistence mode %d", persistence)
	}
}

func TestProcesses(t *testing.T) {
	library, machine := start(t)
	device := deviceAt(t, library, 1)
	one, two := simtest.StartHolder(t, machine), simtest.StartHolder(t, machine)
	one.Hold(t, 1, 3*gib)
	two.Hold(t, 1, 5)
	two.Hold(t, 0, gib)
	if diff := cmp.Diff(map[int]uint64{one.Pid: 3 * gib, two.Pid: 5}, processes(t, device)); diff != "" {
		t.Error(diff)
	}
	memory, result := device.GetMemoryInfo()
	succeed(t, result)
	if want := uint64(3*gib + 5); memory.Used != want || memory.Free != memoryBytes-want {
		t.Errorf("memory %+v", memory)
	}
	one.Kill(t)
	if diff := cmp.Diff(map[int]uint64{two.Pid: 5}, processes(t, device)); diff != "" {
		t.Errorf("after a kill: %s", diff)
	}
	memory, result = device.GetMemoryInfo()
	succeed(t, result)
	if memory.Used != 5 {
		t.Errorf("after a kill: memory %+v", memory)
	}
	two.Kill(t)
	if graphics := graphicsProcesses(t, device); len(graphics) != 0 {
		t.Errorf("graphics processes %v", graphics)
	}
}

// TestWithoutCUDA lists processes that use a GPU through other APIs. NVML has a
// separate list for graphics, and a list of the encoder's sessions.
func TestWithoutCUDA(t *testing.T) {
	library, machine := start(t)
	device := deviceAt(t, library, 1)
	computes := simtest.StartHolder(t, machine)
	computes.Hold(t, 1, 3*gib)
	draws := machine.Use(t, 1, gib, "--graphics", "--busy")
	encodes := machine.Use(t, 1, gib, "--encode", "40", "--decode", "7")
	if diff := cmp.Diff(map[int]uint64{computes.Pid: 3 * gib, encodes: gib}, processes(t, device)); diff != "" {
		t.Errorf("compute: %s", diff)
	}
	if diff := cmp.Diff(map[int]uint64{draws: gib}, graphicsProcesses(t, device)); diff != "" {
		t.Errorf("graphics: %s", diff)
	}
	sessions, result := device.GetEncoderSessions()
	succeed(t, result)
	if len(sessions) != 1 || int(sessions[0].Pid) != encodes {
		t.Errorf("sessions of the encoder: %+v", sessions)
	}
	encoder, _, result := device.GetEncoderUtilization()
	succeed(t, result)
	decoder, _, result := device.GetDecoderUtilization()
	succeed(t, result)
	if encoder != 40 || decoder != 7 {
		t.Errorf("the encoder is busy for %d %%, the decoder for %d %%", encoder, decoder)
	}
	time.Sleep(400 * time.Millisecond)
	samples, result := device.GetProcessUtilization(0)
	succeed(t, result)
	seen := map[int]bool{}
	for _, s := range samples {
		seen[int(s.Pid)] = true
		switch pid := int(s.Pid); {
		case pid == encodes && (s.EncUtil != 40 || s.DecUtil != 7 || s.SmUtil != 0),
			pid == draws && (s.EncUtil != 0 || s.DecUtil != 0 || s.SmUtil == 0):
			t.Errorf("a sample of process %d: %+v", pid, s)
		}
	}
	if !seen[draws] || !seen[encodes] || seen[computes.Pid] {
		t.Errorf("samples of %v, want of %d and %d", seen, draws, encodes)
	}
	for _, pid := range []int{draws, encodes} {
		machine.EndUse(t, pid)
	}
	computes.Kill(t)
	if sessions, result = device.GetEncoderSessions(); result != nvml.SUCCESS || len(sessions) != 0 {
		t.Errorf("after the end of the process: %+v, %v", sessions, result)
	}
	if graphics := graphicsProcesses(t, device); len(graphics) != 0 {
		t.Errorf("after the end of the process: %v", graphics)
	}
}

// graphicsProcesses returns NVML's list of graphics processes.
func graphicsProcesses(t *testing.T, device nvml.Device) map[int]uint64 {
	t.Helper()
	list, result := device.GetGraphicsRunningProcesses()
	succeed(t, result)
	bytes := map[int]uint64{}
	for _, process := range list {
		bytes[int(process.Pid)] = process.UsedGpuMemory
	}
	return bytes
}

// TestContainedProcess lists a process of another pid namespace by its pid in
// this namespace.
func TestContainedProcess(t *testing.T) {
	library, machine := start(t)
	holder := simtest.StartContainedHolder(t, machine)
	holder.Hold(t, 0, gib)
	want := map[int]uint64{holder.Pid: gib}
	if diff := cmp.Diff(want, processes(t, deviceAt(t, library, 0))); diff != "" {
		t.Error(diff)
	}
	holder.Kill(t)
}

// processes returns NVML's list of compute processes: bytes by pid.
func processes(t *testing.T, device nvml.Device) map[int]uint64 {
	t.Helper()
	list, result := device.GetComputeRunningProcesses()
	succeed(t, result)
	bytes := map[int]uint64{}
	for _, process := range list {
		bytes[int(process.Pid)] = process.UsedGpuMemory
	}
	return bytes
}

func TestUtilization(t *testing.T) {
	library, machine := start(t)
	device := deviceAt(t, library, 0)
	holders := []*simtest.Holder{simtest.StartHolder(t, machine), simtest.StartHolder(t, machine)}
	for _, holder := range holders {
		holder.Run(t, 0, time.Minute)
	}
	time.Sleep(800 * time.Millisecond)
	rates, result := device.GetUtilizationRates()
	succeed(t, result)
	if rates.Gpu != 100 {
		t.Errorf("two saturating processes: utilisation %d %%", rates.Gpu)
	}
	idle, result := deviceAt(t, library, 1).GetUtilizationRates()
	succeed(t, result)
	if idle.Gpu != 0 {
		t.Errorf("the other GPU: utilisation %d %%", idle.Gpu)
	}
	samples, result := device.GetProcessUtilization(0)
	succeed(t, result)
	var newest uint64
	count := map[int]int{}
	for _, sample := range samples {
		count[int(sample.Pid)]++
		newest = max(newest, sample.TimeStamp)
		// The first window began before the work.
		if count[int(sample.Pid)] > 1 && (sample.SmUtil < 48 || sample.SmUtil > 52) {
			t.Errorf("a sample of %d: %d %%", sample.Pid, sample.SmUtil)
		}
	}
	for _, holder := range holders {
		if count[holder.Pid] < 5 {
			t.Errorf("%d samples of process %d", count[holder.Pid], holder.Pid)
		}
	}
	if age := time.Since(time.UnixMicro(int64(newest))); age < 0 || age > time.Second {
		t.Errorf("the newest sample is %v old", age)
	}
	for _, holder := range holders {
		holder.Kill(t)
	}
	time.Sleep(200 * time.Millisecond)
	_, result = device.GetProcessUtilization(uint64(time.Now().UnixMicro()))
	expect(t, result, nvml.ERROR_NOT_FOUND)
	values, data, result := device.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
	succeed(t, result)
	if values != nvml.VALUE_TYPE_UNSIGNED_INT || len(data) < 8 {
		t.Errorf("%d samples of type %v", len(data), values)
	}
}

// TestUtilizationSince checks the documented meaning of lastSeenTimeStamp. The caller gets the samples
// since an earlier query, all kept samples for 0, and NVML_ERROR_NOT_FOUND without samples.
func TestUtilizationSince(t *testing.T) {
	library, machine := start(t)
	device := deviceAt(t, library, 0)
	_, result := device.GetProcessUtilization(0)
	expect(t, result, nvml.ERROR_NOT_FOUND)
	holder := simtest.StartHolder(t, machine)
	holder.Run(t, 0, time.Minute)
	time.Sleep(500 * time.Millisecond)
	first, result := device.GetProcessUtilization(0)
	succeed(t, result)
	newest := uint64(0)
	for _, sample := range first {
		newest = max(newest, sample.TimeStamp)
	}
	time.Sleep(300 * time.Millisecond)
	later, result := device.GetProcessUtilization(newest)
	succeed(t, result)
	for _, sample := range later {
		if sample.TimeStamp <= newest || int(sample.Pid) != holder.Pid {
			t.Errorf("a sample of process %d at %d, want one of process %d after %d", sample.Pid, sample.TimeStamp, holder.Pid, newest)
		}
	}
	all, result := device.GetProcessUtilization(0)
	succeed(t, result)
	if len(all) < len(first)+len(later) {
		t.Errorf("%d samples in all, want at least %d", len(all), len(first)+len(later))
	}
	_, result = deviceAt(t, library, 1).GetProcessUtilization(0)
	expect(t, result, nvml.ERROR_NOT_FOUND)
	holder.Kill(t)
}

// TestUtilizationPeriod checks that the GPU's rate covers the documented period, from a sixth of a
// second to a second.
func TestUtilizationPeriod(t *testing.T) {
	library, machine := start(t)
	device := deviceAt(t, library, 0)
	within := func(what string, low, high uint32) {
		t.Helper()
		eventually.Holds(t, 10*time.Second, what, func() bool {
			rates, result := device.GetUtilizationRates()
			succeed(t, result)
			return rates.Gpu >= low && rates.Gpu <= high
		})
	}
	within("the GPU is idle", 0, 0)
	holder := simtest.StartHolder(t, machine)
	holder.Run(t, 0, 2*time.Second)
	within("the GPU is busy for a whole period", 100, 100)
	within("the GPU is idle for a part of the period", 0, 99)
	began := time.Now()
	within("the GPU is idle for a whole period", 0, 0)
	if took := time.Since(began); took < time.Second/6 || took > 2*time.Second {
		t.Errorf("the rate covers %v, want between 1/6 s and 1 s", took)
	}
	holder.Kill(t)
}

// newEventSet makes an event set that is freed when the test ends.
func newEventSet(t *testing.T, library nvml.Interface) nvml.EventSet {
	t.Helper()
	set, result := library.EventSetCreate()
	succeed(t, result)
	t.Cleanup(func() { succeed(t, set.Free()) })
	return set
}

func TestEvents(t *testing.T) {
	library, machine := start(t)
	set := newEventSet(t, library)
	supported, result := deviceAt(t, library, 0).GetSupportedEventTypes()
	succeed(t, result)
	if supported != nvml.EventTypeXidCriticalError {
		t.Fatalf("supported events %#x", supported)
	}
	device := deviceAt(t, library, 1)
	succeed(t, device.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	expect(t, device.RegisterEvents(nvml.EventTypeClock, set), nvml.ERROR_NOT_SUPPORTED)

	_, result = set.Wait(20)
	expect(t, result, nvml.ERROR_TIMEOUT)
	machine.Tool(t, "inject", "--gpu", "0", "xid", "48", machineDir) // not registered
	machine.Tool(t, "inject", "--gpu", "1", "xid", "31", machineDir)
	machine.Tool(t, "inject", "--gpu", "1", "xid", "63", machineDir)
	for _, want := range []uint64{31, 63} {
		event, result := set.Wait(1000)
		succeed(t, result)
		index, result := event.Device.GetIndex()
		succeed(t, result)
		if event.EventData != want || event.EventType != nvml.EventTypeXidCriticalError || index != 1 {
			t.Errorf("event %+v on device %d, want XID %d", event, index, want)
		}
	}
	_, result = set.Wait(20)
	expect(t, result, nvml.ERROR_TIMEOUT)
}

// TestEventArrivesWhileWaiting injects an event while a caller waits.
func TestEventArrivesWhileWaiting(t *testing.T) {
	library, machine := start(t)
	set := newEventSet(t, library)
	succeed(t, deviceAt(t, library, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	got := make(chan nvml.Return, 1)
	go func() {
		_, result := set.Wait(10000)
		got <- result
	}()
	machine.Tool(t, "inject", "--gpu", "0", "xid", "94", machineDir)
	succeed(t, <-got)
}

func TestFaults(t *testing.T) {
	library, machine := start(t)
	broken, sound := deviceAt(t, library, 0), deviceAt(t, library, 1)
	set := newEventSet(t, library)
	succeed(t, broken.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	check := func(want nvml.Return) {
		t.Helper()
		_, result := broken.GetMemoryInfo()
		expect(t, result, want)
		_, result = library.DeviceGetHandleByIndex(0)
		expect(t, result, want)
		_, result = sound.GetMemoryInfo()
		succeed(t, result)
	}
	machine.Tool(t, "inject", "--gpu", "0", "nvml-error", "17", machineDir)
	check(nvml.ERROR_OPERATING_SYSTEM)
	machine.Tool(t, "inject", "clear", machineDir)
	check(nvml.SUCCESS)
	machine.Tool(t, "inject", "--gpu", "0", "query-error", "999", machineDir)
	_, result := deviceAt(t, library, 0).GetUUID()
	succeed(t, result)
	_, result = broken.GetMemoryInfo()
	expect(t, result, nvml.ERROR_UNKNOWN)
	machine.Tool(t, "inject", "clear", machineDir)
	check(nvml.SUCCESS)
	machine.Tool(t, "inject", "--gpu", "0", "lost", machineDir)
	check(nvml.ERROR_GPU_IS_LOST)
	event, result := set.Wait(1000)
	succeed(t, result)
	if event.EventData != 79 {
		t.Errorf("a lost GPU reports XID %d", event.EventData)
	}
	_, result = set.Wait(1000)
	expect(t, result, nvml.ERROR_GPU_IS_LOST)
}

func TestRecoveryAction(t *testing.T) {
	library, machine := start(t)
	broken, sound := deviceAt(t, library, 0), deviceAt(t, library, 1)
	set := newEventSet(t, library)
	succeed(t, broken.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	action := func(device nvml.Device) byte {
		t.Helper()
		fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_ECC_CURRENT}}
		succeed(t, device.GetFieldValues(fields))
		succeed(t, nvml.Return(fields[0].NvmlReturn))
		expect(t, nvml.Return(fields[1].NvmlReturn), nvml.ERROR_NOT_SUPPORTED)
		return fields[0].Value[0]
	}
	if got := action(broken); got != byte(nvml.GPU_RECOVERY_ACTION_NONE) {
		t.Errorf("a working GPU recommends %d", got)
	}
	machine.Tool(t, "inject", "--gpu", "0", "recovery", "1", machineDir)
	if got := action(broken); got != byte(nvml.GPU_RECOVERY_ACTION_GPU_RESET) {
		t.Errorf("a broken GPU recommends %d", got)
	}
	if got := action(sound); got != byte(nvml.GPU_RECOVERY_ACTION_NONE) {
		t.Errorf("the other GPU recommends %d", got)
	}
	event, result := set.Wait(1000)
	succeed(t, result)
	if event.EventData != 154 {
		t.Errorf("a changed recovery action reports XID %d", event.EventData)
	}
}

func TestHang(t *testing.T) {
	library, machine := start(t)
	hung, sound := deviceAt(t, library, 0), deviceAt(t, library, 1)
	machine.Tool(t, "inject", "--gpu", "0", "nvml-hang", "3600", machineDir)
	done := make(chan nvml.Return, 1)
	go func() {
		_, result := hung.GetName()
		done <- result
	}()
	_, result := sound.GetName()
	succeed(t, result)
	select {
	case result := <-done:
		t.Fatalf("a hung GPU answered %v", result)
	case <-time.After(100 * time.Millisecond):
	}
	machine.Tool(t, "inject", "clear", machineDir)
	succeed(t, <-done)
}
