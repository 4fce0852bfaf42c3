// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// filler returns a container that fills its GPU's memory until the interposer refuses memory, and
// then holds the memory.
func filler(name string, limits testbed.Limits) corev1.Container {
	return testbed.Container(name, limits, "fill", "--hold", "3600")
}

// filled waits for a filler's output.
func filled(t *testing.T, pod, container string) testbed.Fill {
	t.Helper()
	var fill testbed.Fill
	if err := bed.WaitResult(t.Context(), pod, container, patience, &fill); err != nil {
		t.Fatal(err)
	}
	return fill
}

// checkFilled checks that the pod's only container filled its limit to the byte. checkFilled
// compares the memory that the container saw, the size of the refusal, and the memory that the
// container physically holds.
func checkFilled(t *testing.T, name string, limit uint64) (uuid string) {
	t.Helper()
	pod := running(t, name)
	fill := filled(t, name, pod.Spec.Containers[0].Name)
	if fill.TotalBytes != limit {
		t.Errorf("%s: its program saw a GPU of %d bytes, want %d", name, fill.TotalBytes, limit)
	}
	if fill.Error != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("%s: its program was refused with %q, want CUDA_ERROR_OUT_OF_MEMORY", name, fill.Error)
	}
	if want := limit - contextBytes; fill.GrantedBytes != want {
		t.Errorf("%s: its program got %d bytes, want %d: the limit less the context", name, fill.GrantedBytes, want)
	}
	uuid, bytes := onlyGPU(t, held(t, pod))
	if bytes != limit {
		t.Errorf("%s holds %d bytes, according to the oracle, want its limit, %d", name, bytes, limit)
	}
	return uuid
}

func TestDialects(t *testing.T) {
	for _, test := range []struct {
		name   string
		limits testbed.Limits
		want   uint64
	}{
		{"native", testbed.Limits{testbed.Memory: 4096}, 4 * gib},
		{"native-percentage", testbed.Limits{testbed.Percentage: 25}, gpuMemory / 4},
		{"native-cores", testbed.Limits{testbed.Cores: 20}, gpuMemory * 20 / 100},
		{"alnair", testbed.Limits{"alnair/vgpu-memory": 2, "alnair/vgpu-compute": 50}, 2 * gib},
		{"aws", testbed.Limits{"k8s.amazonaws.com/vgpu": 1}, gpuMemory / 10},
		{"volcano", testbed.Limits{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50}, 3000 * mib},
		{"metagpu", testbed.Limits{"cnvrg.io/metagpu": 30}, gpuMemory * 30 / 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // both GPUs have room for all pods
			create(t, testbed.Pod("dialect-"+test.name, filler("main", test.limits)))
			pod := running(t, "dialect-"+test.name)
			fill := filled(t, pod.Name, "main")
			if fill.TotalBytes != test.want {
				t.Errorf("the pod's program saw %d bytes, want %d", fill.TotalBytes, test.want)
			}
			// Fractions of a GPU are not multiples of the driver's granules, so the last bytes may
			// stay free.
			_, bytes := onlyGPU(t, held(t, pod))
			if bytes > test.want || bytes < test.want-2*mib {
				t.Errorf("by the oracle the pod holds %d bytes, want %d less at most 2 MiB", bytes, test.want)
			}
		})
	}
}

func TestTwoPodsFillOneGPU(t *testing.T) {
	create(t, testbed.Pod("large", filler("main", testbed.Limits{testbed.Memory: 12288})))
	large := checkFilled(t, "large", 12*gib)
	create(t, testbed.Pod("small", filler("main", testbed.Limits{testbed.Memory: 4096})))
	small := checkFilled(t, "small", 4*gib)
	if large != small {
		t.Errorf("the pods are on %s and %s, want the same GPU: bin-packing is the default", large, small)
	}

	// A pod takes all of the other GPU, so no capacity remains for another pod.
	create(t, testbed.Pod("whole", filler("main", testbed.Limits{testbed.Memory: 16384})))
	if whole := checkFilled(t, "whole", 16*gib); whole == large {
		t.Errorf("a pod that requests all of a GPU got %s, where other pods are", whole)
	}

	create(t, testbed.Pod("late", filler("main", testbed.Limits{testbed.Memory: 4096})))
	if _, err := bed.WaitPod(t.Context(), "late", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // time in which a scheduler would place the pod
	if _, err := bed.WaitPod(t.Context(), "late", "still pending", time.Second, unschedulable); err != nil {
		t.Fatal(err)
	}
	if err := bed.Delete(t.Context(), "small"); err != nil {
		t.Fatal(err)
	}
	if late := checkFilled(t, "late", 4*gib); late != large {
		t.Errorf("the pod that waited is on %s, want %s, where room was made", late, large)
	}
}

func unschedulable(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodPending {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

func TestTwoGPUs(t *testing.T) {
	small(t)
	create(t, testbed.Pod("pair",
		testbed.Container("main", testbed.Limits{testbed.Number: 2, testbed.Memory: 2048},
			"sh", "-c", "fill --device 0 --hold 3600 & exec fill --device 1 --hold 3600")))
	pod := running(t, "pair")
	if err := bed.WaitHeld(t.Context(), pod, gpus, patience); err != nil {
		t.Fatal(err)
	}
	for uuid, bytes := range held(t, pod) {
		if bytes != 2*gib {
			t.Errorf("on %s the pod holds %d bytes by the oracle, want %d", uuid, bytes, 2*gib)
		}
	}
}

func TestContainersOfOnePod(t *testing.T) {
	small(t)
	create(t, testbed.Pod("both",
		filler("one", testbed.Limits{testbed.Memory: 2048}),
		filler("two", testbed.Limits{testbed.Memory: 3072})))
	pod := running(t, "both")
	one, two := filled(t, "both", "one"), filled(t, "both", "two")
	if one.TotalBytes != 2*gib || two.TotalBytes != 3*gib {
		t.Errorf("the containers saw %d and %d bytes, want %d and %d", one.TotalBytes, two.TotalBytes, 2*gib, 3*gib)
	}
	if one.UUID != two.UUID {
		t.Errorf("the containers are on %s and %s, want one GPU for one pod", one.UUID, two.UUID)
	}
	if _, bytes := onlyGPU(t, held(t, pod)); bytes != 5*gib {
		t.Errorf("by the oracle the pod holds %d bytes, want %d", bytes, 5*gib)
	}
}

func TestInitContainerLendsItsGPU(t *testing.T) {
	small(t)
	pod := testbed.Pod("init", filler("main", testbed.Limits{testbed.Memory: 2048}))
	pod.Spec.InitContainers = []corev1.Container{
		testbed.Container("prepare", testbed.Limits{testbed.Memory: 4096}, "fill"),
	}
	create(t, pod)
	running(t, "init")
	prepare, main := filled(t, "init", "prepare"), filled(t, "init", "main")
	if prepare.TotalBytes != 4*gib || main.TotalBytes != 2*gib {
		t.Errorf("the init container saw %d bytes and the app %d, want %d and %d", prepare.TotalBytes, main.TotalBytes, 4*gib, 2*gib)
	}
	if prepare.UUID != main.UUID {
		t.Errorf("the init container had %s, the app %s, want the same GPU", prepare.UUID, main.UUID)
	}
}

func TestRestartKeepsGPU(t *testing.T) {
	// An ended pod on the first GPU would make bin-packing choose another GPU the second time.
	create(t, testbed.Pod("neighbour", filler("main", testbed.Limits{testbed.Memory: 12288})))
	checkFilled(t, "neighbour", 12*gib)
	pod := testbed.Pod("restarted", filler("main", testbed.Limits{testbed.Memory: 8192}))
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	create(t, pod)
	before := checkFilled(t, "restarted", 8*gib)
	if err := bed.Delete(t.Context(), "neighbour"); err != nil {
		t.Fatal(err)
	}

	if err := bed.KillContainer(running(t, "restarted")); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.WaitPod(t.Context(), "restarted", "restarted and running", patience, func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].RestartCount == 1 && status[0].State.Running != nil
	}); err != nil {
		t.Fatal(err)
	}
	if after := checkFilled(t, "restarted", 8*gib); after != before {
		t.Errorf("the container was on %s and is on %s after its restart", before, after)
	}
}
