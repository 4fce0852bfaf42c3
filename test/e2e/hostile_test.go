package e2e

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// disturbed is how many points of its share a container may lose to
	// another one's hostility, or win.
	disturbed = 2.0
	// agentMemory bounds the agent's resident memory meanwhile.
	agentMemory = 50 * mib
)

// spinner keeps a GPU busy at a part of its time.
func spinner(cores int64) corev1.Container {
	return testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: cores},
		"spin", "--kernel-us", "2000", "--duration", "3600")
}

// gpuTimes is the GPU time, in ns, that each pod had, and as of when.
func gpuTimes(t *testing.T, o *oracle.Oracle) (times map[string]uint64, clock uint64) {
	t.Helper()
	processes, err := o.Processes()
	if err != nil {
		t.Fatal(err)
	}
	times = map[string]uint64{}
	for _, p := range processes {
		for _, g := range p.GPUs {
			times[p.Hostname] += g.GPUTimeNs
		}
	}
	return times, o.Clock()
}

// shares are the parts of a GPU's time, in percent, that pods have while
// something is done.
func shares(t *testing.T, o *oracle.Oracle, pods []string, meanwhile func()) []float64 {
	t.Helper()
	before, begin := gpuTimes(t, o)
	meanwhile()
	after, end := gpuTimes(t, o)
	parts := make([]float64, len(pods))
	for i, pod := range pods {
		parts[i] = 100 * float64(after[pod]-before[pod]) / float64(end-begin)
	}
	return parts
}

// A container that pesters the agent, or forges its own usage page, changes
// neither others' shares nor what the agent takes.
func TestHostileContainerHarmsNobody(t *testing.T) {
	o, err := oracle.Open(filepath.Join(bed.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	pods := []string{"victim-30", "victim-50"}
	create(t, testbed.Pod(pods[0], spinner(30)))
	create(t, testbed.Pod(pods[1], spinner(50)))
	hostile := testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "sleep", "3600")
	// What it takes of the processors is another matter.
	hostile.Resources.Limits[corev1.ResourceCPU] = resource.MustParse("200m")
	create(t, testbed.Pod("hostile", hostile))
	for _, pod := range append(pods, "hostile") {
		running(t, pod)
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		times, _ := gpuTimes(t, o)
		if times[pods[0]] > 0 && times[pods[1]] > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the victims have not begun: %v", times)
		}
	}
	metric := func(name string) float64 {
		t.Helper()
		value, err := bed.Metric(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	started := metric("process_start_time_seconds")
	time.Sleep(2 * time.Second) // the first moments are another matter, too
	quiet := shares(t, o, pods, func() { time.Sleep(5 * time.Second) })
	t.Logf("in peace the victims have %.1f %%, the agent %.1f MiB", quiet, metric("process_resident_memory_bytes")/mib)

	for _, way := range []string{"fuzz", "half-open", "flood", "forge"} {
		var memory float64
		var said string
		noisy := shares(t, o, pods, func() {
			ended := background(t, "hostile", "pester", "--way", way, "--connections", "10000", "--duration", "6")
			for said == "" {
				select {
				case said = <-ended:
				case <-time.After(200 * time.Millisecond):
				}
				memory = max(memory, metric("process_resident_memory_bytes"))
			}
		})
		t.Logf("%s: the victims have %.1f %%, the agent %.1f MiB; it printed %s", way, noisy, memory/mib, said)
		for i := range pods {
			if math.Abs(noisy[i]-quiet[i]) > disturbed {
				t.Errorf("%s: %s has %.1f %% of the GPU's time, and %.1f %% in peace", way, pods[i], noisy[i], quiet[i])
			}
		}
		if memory > agentMemory {
			t.Errorf("%s: the agent takes %.1f MiB", way, memory/mib)
		}
	}
	if metric("process_start_time_seconds") != started {
		t.Error("the agent was restarted")
	}
}
