// SPDX-License-Identifier: Apache-2.0

// Package e2e contains the end-to-end tests: real pods on a real local node with nri-vgpu installed
// from its released manifest. Only the GPU is simulated. The tests query the simulator, and not our
// code, for the memory that a pod physically held.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 2
	gpuMemory = 16 << 30
	mib       = 1 << 20
	gib       = 1 << 30
	// contextBytes is the size of a CUDA context on the simulated GPU.
	contextBytes = 512 * mib

	patience = 2 * time.Minute
)

// name is the name of the cluster. Concurrent runs need different names.
var name = flag.String("e2e.name", "e2e", "name of the cluster that the tests start")

// eager makes kubelet restart killed containers immediately, after any number of kills.
const eager = `crashLoopBackOff: {maxContainerRestartPeriod: 1s}
`

// bed is the cluster that all tests of the package share. Only small tests use bed concurrently.
var bed *testbed.Bed

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run() // runs no test
	}
	ctx := context.Background()
	source, err := testbed.SourceRoot()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	bed, err = testbed.Up(ctx, testbed.Options{
		Name:      *name,
		Source:    source,
		GPUs:      gpus,
		GPUMemory: gpuMemory,
		Kubelet:   eager,
		Log:       func(format string, args ...any) { fmt.Printf("e2e: "+format+"\n", args...) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if during, err := traces(*name, false); err != nil || len(during) < 10 {
		fmt.Fprintln(os.Stderr, "e2e: failed to find the traces of a running cluster:", during, err)
		code = 1
	}
	if err := bed.Down(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the cluster cannot be taken down:", err)
		return 1
	}
	if left, err := traces(*name, code != 0); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "e2e: the cluster left traces:", left, err)
		return 1
	}
	return code
}

// small makes a test run beside other small tests, after the tests that need the node for
// themselves. A small test takes at most 6 GiB of one GPU, so that four tests fit at a time. A
// small test does not change the agent or the node.
func small(t *testing.T) {
	t.Helper()
	t.Parallel()
}

// create makes the pod in the default namespace, and removes the pod when the test ends. If the
// test fails, create first logs the pod's state.
func create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	createIn(t, bed, pod)
}

func createIn(t *testing.T, bed *testbed.Bed, pod *corev1.Pod) {
	t.Helper()
	if _, err := bed.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	leaving.Lock()
	defer leaving.Unlock()
	leaving.pods[t] = append(leaving.pods[t], leaver{bed, pod.Name})
	t.Cleanup(func() { remove(t) })
}

// A leaver is a pod that remove removes when the pod's test ends.
type leaver struct {
	bed  *testbed.Bed
	name string
}

var leaving = struct {
	sync.Mutex
	pods map[*testing.T][]leaver
}{pods: map[*testing.T][]leaver{}}

// remove removes all pods of a test at once, because each pod takes seconds to end.
func remove(t *testing.T) {
	t.Helper()
	leaving.Lock()
	pods := leaving.pods[t]
	delete(leaving.pods, t)
	leaving.Unlock()
	ctx := context.Background()
	var group sync.WaitGroup
	for _, pod := range pods {
		if t.Failed() {
			explain(ctx, t, pod.bed, pod.name)
		}
		group.Go(func() {
			if err := pod.bed.Delete(ctx, pod.name); err != nil {
				t.Errorf("clean up: %v", err)
			}
		})
	}
	group.Wait()
}

func explain(ctx context.Context, t *testing.T, bed *testbed.Bed, name string) {
	t.Helper()
	messages, err := bed.Messages(ctx, name)
	t.Logf("events of %s (%v):", name, err)
	for _, message := range messages {
		t.Logf("  %s", message)
	}
}

// started waits until a pod that kubelet previously could not start runs or has run.
func started(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := bed.WaitStarted(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func running(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := bed.WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// held returns the bytes that the pod holds on each GPU, according to the oracle.
func held(t *testing.T, pod *corev1.Pod) map[string]uint64 {
	t.Helper()
	bytes, err := bed.Held(pod)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// onlyGPU returns the only GPU in the map, and fails if the map has several GPUs.
func onlyGPU(t *testing.T, held map[string]uint64) (uuid string, bytes uint64) {
	t.Helper()
	if len(held) != 1 {
		t.Fatalf("by the oracle the pod holds memory on %d GPUs, want 1: %v", len(held), held)
	}
	for uuid, bytes = range held {
		return uuid, bytes
	}
	return "", 0
}
