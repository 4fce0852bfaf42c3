// SPDX-License-Identifier: Apache-2.0

// Package oracle reports, from outside, the memory that each process physically holds and the time
// that it has used of the simulated GPUs. The package reads the state of the simulated driver.
//
// Memory is exact at the moment of reading. GPU time is exact as of the time that [Oracle.Clock]
// returns: the driver computes the timeline when a process checks its work, not continuously. A
// rate is therefore the quotient of two differences, of GPU time and of clock. `gpusim oracle`, and
// every utilisation query of NVML, bring the timeline up to the present.
package oracle

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotState reports that a file is not a state of this version.
var ErrNotState = errors.New("not a simulated GPU's state of this version")

// Oracle reads one machine's state. Oracle's methods may be called concurrently.
type Oracle struct {
	file *os.File
	data []byte
	// namespace is the inode of the caller's pid namespace.
	namespace uint64
}

// GPU is a simulated GPU, or a MIG device of a simulated GPU.
type GPU struct {
	Index       int
	UUID        string // "GPU-…" or "MIG-…"
	Name        string
	PCIBusID    string
	Minor       uint32
	MemoryBytes uint64
	// ContextBytes is the memory of each context.
	ContextBytes uint64
	UsedBytes    uint64 // physical, of all live processes
	// PeakUsedBytes is the most that live processes ever held together. The driver updates this
	// maximum at every allocation. UsedBytes is a sum over processes that continue to run.
	// Therefore memory that moves between processes may count twice in UsedBytes.
	PeakUsedBytes uint64
	Busy          time.Duration // time in which any process held the GPU
	Lost          bool          // by an injected fault
}

// Use is one process's memory and time on one GPU.
type Use struct {
	Index        int // of the GPU
	UUID         string
	Bytes        uint64 // physical, contexts included
	PeakBytes    uint64
	ContextBytes uint64 // part of Bytes
	Contexts     uint32
	GPUTimeNs    uint64
	Launches     uint64 // kernels that ended
}

// Process is a live process that has initialised the simulated driver.
type Process struct {
	Pid      int // in the caller's pid namespace, 0 if the process has no pid in that namespace
	SelfPid  int // in the process's own namespace
	Comm     string
	Hostname string // of the process's UTS namespace; in a pod, the pod's name
	Start    uint64 // CLOCK_MONOTONIC, ns
	// NVMLCalls is the number of the process's own NVML calls.
	NVMLCalls uint64
	GPUs      []Use // the GPUs that the process has used
}

// Finished is a process that has ended.
type Finished struct {
	Pid      int // as seen by an observer outside the process's pid namespace, otherwise SelfPid
	SelfPid  int
	Comm     string
	Hostname string
	Start    uint64 // CLOCK_MONOTONIC, ns
	End      uint64 // when the driver detected the end, 0 if the oracle detected the end first
	// NVMLCalls was the number of the process's own NVML calls.
	NVMLCalls uint64
	GPUs      []PastUse
}

// PastUse is an ended process's use of one GPU.
type PastUse struct {
	Index     int // of the GPU
	UUID      string
	PeakBytes uint64
	GPUTimeNs uint64
}

// Open opens the state in the directory dir, for instance /dev/gpusim.
//
// Locks of the driver are POSIX locks, which belong to a process. A process that uses the simulated
// driver or NVML must not close the oracle of the same state. The close would drop all locks of the
// process on the file.
func Open(dir string) (*Oracle, error) {
	path := filepath.Join(dir, "state")
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the simulated GPUs' state: %w", err)
	}
	o := &Oracle{file: file, namespace: pidNamespace()}
	if err := o.mapState(); err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), file.Close())
	}
	return o, nil
}

// Close unmaps the state. A process that uses the driver must not call Close: see [Open].
func (o *Oracle) Close() error {
	return errors.Join(unix.Munmap(o.data), o.file.Close())
}

func (o *Oracle) mapState() error {
	info, err := o.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != stateSize {
		return ErrNotState
	}
	o.data, err = unix.Mmap(int(o.file.Fd()), 0, stateSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the state: %w", err)
	}
	known := o.u64(stateMagicAt) == stateMagic && o.u32(stateVersionAt) == stateVersion &&
		o.u64(stateSizeAt) == stateSize && o.u32(stateGPUCountAt) <= maxGPUs
	if !known {
		return errors.Join(ErrNotState, unix.Munmap(o.data))
	}
	return nil
}

// Clock returns the time up to which GPU times are computed, in ns of
// CLOCK_MONOTONIC.
func (o *Oracle) Clock() uint64 { return o.u64(stateClockAt) }

// Names returns the branch whose names the driver's library exports, for instance
// "r535". The simulator builds that library in the directory drivers/<branch>.
func (o *Oracle) Names() string { return o.text(stateNamesAt, stateNamesSize) }

// GPUs returns all GPUs of the machine.
func (o *Oracle) GPUs() ([]GPU, error) {
	processes, err := o.Processes()
	if err != nil {
		return nil, err
	}
	used := map[int]uint64{}
	for _, process := range processes {
		for _, use := range process.GPUs {
			used[use.Index] += use.Bytes
		}
	}
	gpus := make([]GPU, o.u32(stateGPUCountAt))
	for i := range gpus {
		gpus[i] = o.gpu(i)
		gpus[i].UsedBytes = used[i]
	}
	return gpus, nil
}

func (o *Oracle) gpu(index int) GPU {
	at := stateGPUsAt + index*gpuSize
	return GPU{
		Index:         index,
		UUID:          o.uuid(index),
		Name:          o.text(at+gpuNameAt, gpuNameSize),
		PCIBusID:      o.text(at+gpuPCIAt, gpuPCISize),
		Minor:         o.u32(at + gpuMinorAt),
		MemoryBytes:   o.u64(at + gpuMemoryAt),
		ContextBytes:  o.u64(at + gpuContextAt),
		Busy:          time.Duration(o.u64(at + gpuBusyAt)),
		PeakUsedBytes: o.u64(at + gpuPeakAt),
		Lost:          o.u32(at+gpuLostAt) != 0,
	}
}

// Processes returns the live processes that have initialised the driver.
func (o *Oracle) Processes() ([]Process, error) {
	var processes []Process
	for slot := range maxProcs {
		if o.u32(procAt(slot)+procInUseAt) == 0 {
			continue
		}
		pid, alive, err := o.holder(slot)
		if err != nil {
			return nil, err
		}
		if alive {
			o.notePid(slot, pid)
			processes = append(processes, o.process(slot, pid))
		}
	}
	return processes, nil
}

func (o *Oracle) process(slot, pid int) Process {
	at := procAt(slot)
	process := Process{
		Pid:      pid,
		SelfPid:  o.i32(at + procSelfPidAt),
		Comm:     o.text(at+procCommAt, commSize),
		Hostname: o.text(at+procHostnameAt, hostnameSize),
		Start:    o.u64(at + procStartAt),
	}
	process.NVMLCalls = o.nvmlCalls(at+procExecIDAt, at+procPidNSAt, at+procSelfPidAt)
	for index := range int(o.u32(stateGPUCountAt)) {
		if use := o.use(slot, index); use.PeakBytes > 0 || use.Contexts > 0 || use.GPUTimeNs > 0 {
			process.GPUs = append(process.GPUs, use)
		}
	}
	return process
}

func (o *Oracle) use(slot, index int) Use {
	at := procAt(slot) + procGPUsAt + index*useSize
	return Use{
		Index:        index,
		UUID:         o.uuid(index),
		Bytes:        o.u64(at + useBytesAt),
		PeakBytes:    o.u64(at + usePeakAt),
		ContextBytes: o.u64(at + useContextAt),
		Contexts:     o.u32(at + useContextsAt),
		GPUTimeNs:    o.u64(at + useTimeAt),
		Launches:     o.u64(at + useLaunchesAt),
	}
}

// Finished returns the processes that have ended, in the order of their ends. The state keeps the
// last 1024 processes.
func (o *Oracle) Finished() ([]Finished, error) {
	for {
		last := o.u64(stateHistoryAt)
		finished := o.history(last)
		unnoticed, err := o.unnoticed()
		if err != nil {
			return nil, err
		}
		// No process is missing or listed twice if the driver has detected no end meanwhile.
		if o.u64(stateHistoryAt) == last {
			return append(finished, unnoticed...), nil
		}
	}
}

func (o *Oracle) history(last uint64) []Finished {
	first := uint64(1)
	if last > historyRing {
		first = last - historyRing + 1
	}
	var finished []Finished
	for seq := first; seq <= last; seq++ {
		at := stateHistoriesAt + int(seq%historyRing)*historySize
		if o.u64(at+historySeqAt) == seq {
			finished = append(finished, o.finished(at))
		}
	}
	return finished
}

func (o *Oracle) finished(at int) Finished {
	finished := Finished{
		Pid:      o.i32(at + historySeenPidAt),
		SelfPid:  o.i32(at + historySelfPidAt),
		Comm:     o.text(at+historyCommAt, commSize),
		Hostname: o.text(at+historyHostnameAt, hostnameSize),
		Start:    o.u64(at + historyStartAt),
		End:      o.u64(at + historyEndAt),
	}
	finished.NVMLCalls = o.nvmlCalls(at+historyExecIDAt, at+historyPidNSAt, at+historySelfPidAt)
	if finished.Pid == 0 {
		finished.Pid = finished.SelfPid
	}
	for index := range int(o.u32(stateGPUCountAt)) {
		use := at + historyGPUsAt + index*historyUseSize
		past := PastUse{Index: index, UUID: o.uuid(index),
			PeakBytes: o.u64(use + historyUsePeakAt), GPUTimeNs: o.u64(use + historyUseTimeAt)}
		if past.PeakBytes > 0 || past.GPUTimeNs > 0 {
			finished.GPUs = append(finished.GPUs, past)
		}
	}
	return finished
}

// unnoticed returns ended processes whose end the driver has not detected yet. The driver checks
// for ended processes when a process needs memory or time.
func (o *Oracle) unnoticed() ([]Finished, error) {
	var finished []Finished
	for slot := range maxProcs {
		if o.u32(procAt(slot)+procInUseAt) == 0 {
			continue
		}
		_, alive, err := o.holder(slot)
		if err != nil {
			return nil, err
		}
		if !alive {
			finished = append(finished, o.ended(slot))
		}
	}
	return finished, nil
}

func (o *Oracle) ended(slot int) Finished {
	process := o.process(slot, o.i32(procAt(slot)+procSeenPidAt))
	finished := Finished{Pid: process.Pid, SelfPid: process.SelfPid, Comm: process.Comm,
		Hostname: process.Hostname, Start: process.Start, NVMLCalls: process.NVMLCalls}
	if finished.Pid == 0 {
		finished.Pid = finished.SelfPid
	}
	for _, use := range process.GPUs {
		finished.GPUs = append(finished.GPUs, PastUse{Index: use.Index, UUID: use.UUID,
			PeakBytes: use.PeakBytes, GPUTimeNs: use.GPUTimeNs})
	}
	return finished
}

// holder asks the kernel for the holder of a slot's lock. The kernel drops the lock when the
// process ends in any way. holder reports the pid in the caller's namespace.
func (o *Oracle) holder(slot int) (pid int, alive bool, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: lockBase + int64(slot), Len: 1}
	if err := unix.FcntlFlock(o.file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, false, fmt.Errorf("ask who holds slot %d: %w", slot, err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, false, nil
	}
	return max(int(lock.Pid), 0), true, nil
}

// notePid stores the pid in the state, for the history, if it differs from the process's own view.
func (o *Oracle) notePid(slot, pid int) {
	at := procAt(slot)
	if pid > 0 && o.u64(at+procPidNSAt) != o.namespace {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&o.data[at+procSeenPidAt])), uint32(pid))
	}
}

func procAt(slot int) int { return stateProcsAt + slot*procSize }

func (o *Oracle) u64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&o.data[at])))
}

func (o *Oracle) u32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&o.data[at])))
}

func (o *Oracle) i32(at int) int { return int(int32(o.u32(at))) }

// text returns the text in a field of this size, up to its terminating zero.
func (o *Oracle) text(at, size int) string {
	text, _, _ := bytes.Cut(bytes.Clone(o.data[at:at+size]), []byte{0})
	return string(text)
}

func (o *Oracle) uuid(index int) string {
	at := stateGPUsAt + index*gpuSize + gpuUUIDAt
	text := hex.EncodeToString(o.data[at : at+16])
	kind := "GPU"
	if o.u32(stateGPUsAt+index*gpuSize+gpuMIGRoleAt) >= migDevice {
		kind = "MIG"
	}
	return fmt.Sprintf("%s-%s-%s-%s-%s-%s", kind, text[:8], text[8:12], text[12:16], text[16:20], text[20:])
}

func pidNamespace() uint64 {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &stat); err != nil {
		return 0
	}
	return stat.Ino
}
