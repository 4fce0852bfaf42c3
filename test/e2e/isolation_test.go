// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// seen runs a pod to its end in the default namespace and returns the GPUs that its program saw.
func seen(t *testing.T, pod *corev1.Pod) testbed.Info {
	t.Helper()
	return seenIn(t, bed, pod)
}

func seenIn(t *testing.T, bed *testbed.Bed, pod *corev1.Pod) testbed.Info {
	t.Helper()
	createIn(t, bed, pod)
	return whatSaw(t, bed, pod)
}

// whatSaw waits for the end of a pod's program and returns the GPUs that the program saw.
func whatSaw(t *testing.T, bed *testbed.Bed, pod *corev1.Pod) testbed.Info {
	t.Helper()
	if _, err := bed.WaitSucceeded(t.Context(), pod.Name, patience); err != nil {
		t.Fatal(err)
	}
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), pod.Name, pod.Spec.Containers[0].Name, patience, &info); err != nil {
		t.Fatal(err)
	}
	return info
}

// cudaContainer returns a container of an image that requests all GPUs, as CUDA base images do.
func cudaContainer(limits testbed.Limits) corev1.Container {
	container := testbed.Container("main", limits, "info")
	container.Image = testbed.CUDAImage
	return container
}

// TestExemptNamespaceSeesAllGPUs checks that without nri-vgpu, NVIDIA's own runtime fulfils the
// image's request. The tests below would also pass on a node without GPUs. This test shows that our
// node has GPUs.
func TestExemptNamespaceSeesAllGPUs(t *testing.T) {
	const exporters = "exporters"
	if err := bed.EnsureNamespace(t.Context(), exporters); err != nil {
		t.Fatal(err)
	}
	configure(t, "[node]\nexempt_namespaces = [\"exporters\"]\n")
	there := bed.In(exporters)
	info := seenIn(t, there, testbed.Pod("exempt", cudaContainer(nil)))
	if len(info.CUDA.Devices) != gpus {
		t.Errorf("a pod in an exempt namespace whose image requests all GPUs sees %d, want %d", len(info.CUDA.Devices), gpus)
	}
	checkAskerIsLimited(t, there, "exempt-asks")
}

func TestNamespaceOfTheReleaseIsAsAnyOther(t *testing.T) {
	small(t)
	there := bed.In(testbed.Namespace)
	if info := seenIn(t, there, testbed.Pod("beside-the-agent", cudaContainer(nil))); len(info.CUDA.Devices) != 0 {
		t.Errorf("a pod that requests no GPU, beside the agent, sees %d", len(info.CUDA.Devices))
	}
	checkAskerIsLimited(t, there, "asks-beside-the-agent")
}

// agentLike returns a pod of an image that requests all GPUs, with an agent's privileges and
// mounts.
func agentLike(name string, readOnly bool) *corev1.Pod {
	container, yes := cudaContainer(nil), true
	container.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	container.VolumeMounts = []corev1.VolumeMount{{Name: "nri", MountPath: "/var/run/nri", ReadOnly: readOnly}}
	pod := testbed.Pod(name, container)
	pod.Spec.Volumes = []corev1.Volume{{
		Name: "nri", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/run/nri"}},
	}}
	return pod
}

// TestTheAgentIsKnownByWhatItHas checks that a pod with an agent's privileges and mounts sees the
// GPUs by NVIDIA's runtime, in any namespace. Another privileged pod does not see the GPUs.
func TestTheAgentIsKnownByWhatItHas(t *testing.T) {
	small(t)
	if info := seen(t, agentLike("as-an-agent", false)); len(info.CUDA.Devices) != gpus {
		t.Errorf("an agent sees %d GPUs by NVIDIA's runtime, want %d", len(info.CUDA.Devices), gpus)
	}
	if info := seen(t, agentLike("nearly-an-agent", true)); len(info.CUDA.Devices) != 0 {
		t.Errorf("a privileged pod that requests no GPU sees %d GPUs by NVIDIA's runtime", len(info.CUDA.Devices))
	}
}

// checkAskerIsLimited creates a pod whose image requests all GPUs and whose spec requests a part of
// a GPU. The pod must get only the part.
func checkAskerIsLimited(t *testing.T, bed *testbed.Bed, name string) {
	t.Helper()
	info := seenIn(t, bed, testbed.Pod(name, cudaContainer(testbed.Limits{testbed.Memory: 1024})))
	if len(info.CUDA.Devices) != 1 || info.CUDA.Devices[0].TotalBytes != gib {
		t.Errorf("%s requests 1 GiB of one GPU and sees %+v", name, info.CUDA.Devices)
	}
}

func TestNothingAskedNothingSeen(t *testing.T) {
	small(t)
	for _, test := range []struct {
		name string
		env  []corev1.EnvVar
	}{
		{"image", nil},
		{"image-and-pod", []corev1.EnvVar{{Name: visibleDevices, Value: "all"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			container := cudaContainer(nil)
			container.Env = test.env
			if info := seen(t, testbed.Pod("nothing-"+test.name, container)); len(info.CUDA.Devices) != 0 {
				t.Errorf("a pod that requests no GPU sees %d: %+v", len(info.CUDA.Devices), info.CUDA.Devices)
			}
		})
	}
}

func TestImageAndPodWantAllGPUs(t *testing.T) {
	small(t)
	container := cudaContainer(testbed.Limits{testbed.Memory: 1024})
	container.Env = []corev1.EnvVar{{Name: visibleDevices, Value: "all"}}
	info := seen(t, testbed.Pod("wants-all", container))
	if len(info.CUDA.Devices) != 1 {
		t.Fatalf("a pod that requests a part of one GPU sees %d: %+v", len(info.CUDA.Devices), info.CUDA.Devices)
	}
	if info.CUDA.Devices[0].TotalBytes != gib {
		t.Errorf("the pod's GPU has %d bytes, want %d", info.CUDA.Devices[0].TotalBytes, gib)
	}
}

func TestEmptyEnvironmentStaysLimited(t *testing.T) {
	small(t)
	create(t, testbed.Pod("env-i", testbed.Container("main", testbed.Limits{testbed.Memory: 2048},
		"env", "-i", "/usr/bin/fill", "--hold", "3600")))
	checkFilled(t, "env-i", 2*gib)
}

func TestExecStaysLimited(t *testing.T) {
	small(t)
	create(t, testbed.Pod("exec", testbed.Container("main", testbed.Limits{testbed.Memory: 2048}, "linger")))
	running(t, "exec")
	var fill testbed.Fill
	if err := bed.Exec(t.Context(), "exec", &fill, "env", "-i", "/usr/bin/fill"); err != nil {
		t.Fatal(err)
	}
	if want := uint64(2*gib - contextBytes); fill.TotalBytes != 2*gib || fill.GrantedBytes != want {
		t.Errorf("a program in kubectl exec saw %d bytes and got %d, want %d and %d", fill.TotalBytes, fill.GrantedBytes, 2*gib, want)
	}
}

func TestMountsOverOursAreRefused(t *testing.T) {
	small(t)
	for name, destination := range map[string]string{
		"preload":          "/etc/ld.so.preload",
		"trailing-slash":   "/etc/ld.so.preload/",
		"dots":             "/etc/x/../ld.so.preload",
		"limits":           "/run/nri-vgpu/limits",
		"limits-directory": "/run/nri-vgpu",
		"library":          "/usr/local/nri-vgpu/lib",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := testbed.Pod("mount-"+name, testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "fill"))
			pod.Spec.Volumes = []corev1.Volume{{
				Name:         "own",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: destination}}
			create(t, pod)
			refused, err := bed.WaitPod(t.Context(), pod.Name, "refused", patience, func(pod *corev1.Pod) bool {
				status := pod.Status.ContainerStatuses
				return len(status) == 1 && status[0].State.Waiting != nil &&
					status[0].State.Waiting.Reason == "CreateContainerError"
			})
			if err != nil {
				t.Fatal(err)
			}
			message := refused.Status.ContainerStatuses[0].State.Waiting.Message
			if !strings.Contains(message, "nri-vgpu") || !strings.Contains(message, "mount") {
				t.Errorf("the refusal does not state that nri-vgpu refuses a mount: %q", message)
			}
			if bytes := held(t, refused); len(bytes) != 0 {
				t.Errorf("the refused pod holds GPU memory: %v", bytes)
			}
		})
	}
}
