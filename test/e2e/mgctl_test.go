// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const metagpu = "cnvrg.io/metagpu"

// mgctl runs mgctl in a pod's container and decodes its answer.
func mgctl(t *testing.T, pod string, answer any, args ...string) {
	t.Helper()
	if err := bed.Exec(t.Context(), pod, answer, append([]string{"mgctl"}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// TestOneGPUAndAHalf checks that 150 shares are one GPU and half of another GPU.
func TestOneGPUAndAHalf(t *testing.T) {
	create(t, testbed.Pod("one-and-a-half", testbed.Container("main", testbed.Limits{metagpu: 150}, "linger")))
	pod := running(t, "one-and-a-half")
	var info testbed.Info
	if err := bed.Exec(t.Context(), pod.Name, &info, "info"); err != nil {
		t.Fatal(err)
	}
	if n := len(info.CUDA.Devices); n != 2 {
		t.Fatalf("the pod sees %d GPUs, want 2", n)
	}
	for i, want := range []uint64{gpuMemory, gpuMemory / 2} {
		if got := info.CUDA.Devices[i].TotalBytes; got != want {
			t.Errorf("GPU %d has %d bytes, want %d", i, got, want)
		}
		fill := background(t, pod.Name, "fill", "--device", string('0'+rune(i)), "--hold", "3600")
		uuid := info.CUDA.Devices[i].UUID
		eventually.Holds(t, patience, "the pod holds its part", func() bool { return held(t, pod)[uuid] == want || len(fill) > 0 })
		if got := held(t, pod)[uuid]; got != want {
			t.Errorf("by the oracle the pod holds %d bytes of GPU %d, want %d", got, i, want)
		}
	}
	var devices []agentapi.Device
	mgctl(t, pod.Name, &devices, "get", "devices", "-o", "json")
	if len(devices) != 2 {
		t.Fatalf("mgctl reports %+v", devices)
	}
	for i, want := range []struct {
		held  int
		bytes uint64
	}{{100, gpuMemory}, {50, gpuMemory / 2}} {
		d := devices[i]
		if d.UUID != info.CUDA.Devices[i].UUID || d.MemoryBytes != want.bytes || d.MemoryUsedBytes == nil || *d.MemoryUsedBytes != want.bytes ||
			len(d.Sharing) != 1 || d.Sharing[0] != (agentapi.Sharing{Resource: metagpu, PerGPU: 100, ShareBytes: gpuMemory / 100, Held: want.held}) {
			t.Errorf("for GPU %d, mgctl reports %+v, want %d shares and %d bytes", i, d, want.held, want.bytes)
		}
	}
}

// spinning starts a pod with shares of a GPU whose process keeps the GPU busy.
func spinning(t *testing.T, name string, n int64) *corev1.Pod {
	t.Helper()
	create(t, testbed.Pod(name, testbed.Container("main", testbed.Limits{metagpu: n}, "spin", "--kernel-us", "2000", "--duration", "3600")))
	return running(t, name)
}

// moment is the GPU time of a pod at a time of the simulator's clock.
type moment struct{ had, at time.Duration }

// record records moments of a pod until the returned function is called.
func record(t *testing.T, pod *corev1.Pod) (stop func() []moment) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	var moments []moment
	go func() {
		defer close(done)
		for {
			had, at, err := bed.GPUTime(pod)
			if err != nil {
				t.Error(err)
				return
			}
			moments = append(moments, moment{had, at})
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() []moment { close(ended); <-done; return moments }
}

// seconds returns the least and the largest share, in percent, that a pod had in any second that
// ended since a time.
func seconds(moments []moment, since time.Duration) (low, high float64) {
	low, high = 100, 0
	from := 0
	for i, end := range moments {
		for from < i && moments[from+1].at <= end.at-time.Second {
			from++
		}
		begin := moments[from]
		if end.at < since || end.at-begin.at < time.Second {
			continue
		}
		had := 100 * float64(end.had-begin.had) / float64(end.at-begin.at)
		low, high = min(low, had), max(high, had)
	}
	return low, high
}

// answerAge is the greatest age of an answer. The driver reports completed periods of 100 ms, and
// the agent reuses its last query for a quarter of a second.
const answerAge = 400 * time.Millisecond

// promised is the greatest error of an answer, in points.
const promised = 2

// TestMgctlAgreesWithTheOracle checks that mgctl in a container reports only the container's
// processes, with the oracle's measurements. On the node mgctl reports all processes.
func TestMgctlAgreesWithTheOracle(t *testing.T) {
	pods := map[string]*corev1.Pod{}
	parts := map[string]int64{"thirty": 30, "fifty": 50}
	for name, n := range parts {
		pods[name] = spinning(t, name, n)
	}
	for name, pod := range pods {
		eventually.Holds(t, patience, name+" uses its GPU", func() bool { had, _, err := bed.GPUTime(pod); return err == nil && had > time.Second/2 })
	}
	for name, pod := range pods {
		_, from, err := bed.GPUTime(pod)
		if err != nil {
			t.Fatal(err)
		}
		recorded := record(t, pod)
		// Answers describe the last second.
		eventually.Holds(t, patience, "enough time has passed", func() bool { _, at, err := bed.GPUTime(pod); return err == nil && at-from > time.Second+answerAge })
		_, asked, err := bed.GPUTime(pod)
		if err != nil {
			t.Fatal(err)
		}
		var list []agentapi.Process
		mgctl(t, name, &list, "get", "processes", "-o", "json")
		low, high := seconds(recorded(), asked-answerAge)
		if len(list) != 1 {
			t.Fatalf("%s gets %+v, want its own process", name, list)
		}
		p := list[0]
		part := float64(parts[name])
		if p.Namespace != "default" || p.Pod != name || p.Container != "main" || p.PID != 1 || !strings.HasPrefix(p.Command, "spin --kernel-us 2000") || p.Requests[metagpu] != parts[name] {
			t.Errorf("%s gets %+v", name, p)
		}
		if uuid, bytes := onlyGPU(t, held(t, pod)); p.UUID != uuid || p.MemoryUsedBytes == nil || *p.MemoryUsedBytes != bytes || p.MemoryLimitBytes != gpuMemory*uint64(parts[name])/100 {
			t.Errorf("%s gets %+v, and by the oracle holds %d bytes of %s", name, p, bytes, uuid)
		}
		near := func(percent float64) bool { return percent >= low-promised && percent <= high+promised }
		if p.Utilisation == nil || p.ShareUtilisation == nil || !near(*p.Utilisation) || !near(*p.ShareUtilisation*part/100) {
			t.Errorf("%s gets %s, and by the oracle had %.2f to %.2f %%", name, describe(p), low, high)
		}
		t.Logf("%s gets %s, and by the oracle had %.2f to %.2f %%", name, describe(p), low, high)
	}
	output, err := bed.Vgpuctl(t.Context(), "get", "processes", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	checkAllAreSeen(t, "on the node", output, pods)
	if output, err = bed.InAgent(t.Context(), "mgctl", "get", "processes", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	checkAllAreSeen(t, "in the agent's pod", output, pods)
}

func describe(p agentapi.Process) string {
	raw, _ := json.Marshal(p)
	return string(raw)
}

// checkAllAreSeen checks that the node's root sees all pods, by the pids of the node.
func checkAllAreSeen(t *testing.T, where, output string, pods map[string]*corev1.Pod) {
	t.Helper()
	var all []agentapi.Process
	if err := json.Unmarshal([]byte(output), &all); err != nil {
		t.Fatalf("%s: %v: %q", where, err, output)
	}
	for name := range pods {
		k := slices.IndexFunc(all, func(p agentapi.Process) bool { return p.Pod == name })
		if k < 0 || all[k].PID == 1 || all[k].Container != "main" || all[k].Node != bed.Cluster.NodeName {
			t.Errorf("%s %s is not among %s", where, name, output)
		}
	}
}

// TestGarbageGetsAnErrorAndNothingHappens checks that any other message of a tenant over the
// agent's socket gets an error. The message does not affect other pods, the agent, or later
// answers.
func TestGarbageGetsAnErrorAndNothingHappens(t *testing.T) {
	victim := spinning(t, "victim", 30)
	create(t, testbed.Pod("garbage", testbed.Container("main", testbed.Limits{metagpu: 30}, "linger")))
	running(t, "garbage")
	agent := agentPid(t)
	before, _, err := bed.GPUTime(victim)
	if err != nil {
		t.Fatal(err)
	}
	var did struct {
		Made    int `json:"connections_made"`
		Errors  int `json:"errors"`
		Answers int `json:"answers"`
	}
	if err := bed.Exec(t.Context(), "garbage", &did, "pester", "--way", "garbage", "--duration", "1"); err != nil {
		t.Fatal(err)
	}
	if did.Made < 10 || did.Errors != did.Made || did.Answers != 0 {
		t.Errorf("the answers to the tenant are %+v, want an error for each message", did)
	}
	for _, args := range [][]string{{"kill", "1"}, {"get"}, {"get", "secrets"}, {"get", "processes", "--all"}} {
		if stdout, stderr, err := bed.ExecOutput(t.Context(), "garbage", append([]string{"mgctl"}, args...)...); err == nil {
			t.Errorf("mgctl %v did not fail: %s%s", args, stdout, stderr)
		}
	}
	var list []agentapi.Process
	mgctl(t, "garbage", &list, "get", "processes", "-o", "json")
	if len(list) != 0 {
		t.Errorf("a pod without processes gets %+v", list)
	}
	after := running(t, "victim")
	if had, _, err := bed.GPUTime(victim); err != nil || had <= before || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the tenant's neighbour had %v of the GPU before, and has %v (%v)", before, had, err)
	}
	if now := agentPid(t); now != agent {
		t.Errorf("the agent was process %d, and is %d", agent, now)
	}
	if counted, err := bed.Metric(t.Context(), "nri_vgpu_registrations_invalid_total", nil); err != nil || counted < float64(did.Errors) {
		t.Errorf("the agent counted %v of %d invalid messages: %v", counted, did.Errors, err)
	}
}

// TestMgctlInAnEmptyImage checks that the tools run in an empty image, for a user without rights.
func TestMgctlInAnEmptyImage(t *testing.T) {
	user, no := int64(1000), false
	container := testbed.Container("main", testbed.Limits{metagpu: 10}, "/usr/bin/mgctl", "ping")
	container.Image = testbed.EmptyImage
	container.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &user, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	create(t, testbed.Pod("empty", container))
	if _, err := bed.WaitSucceeded(t.Context(), "empty", patience); err != nil {
		t.Fatal(err)
	}
	if log, err := bed.Log(t.Context(), "empty", "main"); err != nil || !strings.HasPrefix(log, "pong: the agent on "+bed.Cluster.NodeName+" answers") {
		t.Errorf("mgctl printed %q, %v", log, err)
	}
}

// TestMgctlWithAWholeGPU checks that a container with a whole GPU, which runs without the
// interposer, also has the tools. If the agent is down, the tools report the agent's absence.
func TestMgctlWithAWholeGPU(t *testing.T) {
	create(t, testbed.Pod("whole-shares", testbed.Container("main", testbed.Limits{metagpu: 100}, "fill", "--hold", "3600")))
	pod := running(t, "whole-shares")
	filled(t, pod.Name, "main")
	uuid, bytes := onlyGPU(t, held(t, pod))
	var list []agentapi.Process
	mgctl(t, pod.Name, &list, "get", "processes", "-o", "json")
	if len(list) != 1 || list[0].UUID != uuid || list[0].MemoryUsedBytes == nil || *list[0].MemoryUsedBytes != bytes || list[0].MemoryLimitBytes != gpuMemory {
		t.Errorf("mgctl prints %+v; by the oracle the pod holds %d bytes of %s", list, bytes, uuid)
	}
	back := away(t)
	if _, stderr, err := bed.ExecOutput(t.Context(), pod.Name, "mgctl", "get", "devices"); err == nil || !strings.Contains(stderr, "the agent does not answer") {
		t.Errorf("while the agent is away: %q, %v", stderr, err)
	}
	back()
	var devices []agentapi.Device
	mgctl(t, pod.Name, &devices, "get", "devices", "-o", "json")
	if len(devices) != 1 || devices[0].UUID != uuid {
		t.Errorf("mgctl prints %+v", devices)
	}
}
