// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// operator is the namespace of NVIDIA's device plugin.
	operator = "gpu-operator"
	// plugged is the resource of NVIDIA's device plugin.
	plugged        = "nvidia.com/gpu"
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
)

// plug starts NVIDIA's device plugin, which offers the GPUs that it sees.
func plug(t *testing.T, visible string) {
	t.Helper()
	at := bed.In(operator)
	if err := bed.EnsureNamespace(t.Context(), operator); err != nil {
		t.Fatal(err)
	}
	pod := testbed.Pod("nvidia-device-plugin", corev1.Container{
		Name: "plugin", Image: pluginImage, ImagePullPolicy: corev1.PullNever,
		Command:      []string{components.DevicePluginProgram},
		Env:          []corev1.EnvVar{{Name: visibleDevices, Value: visible}, {Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "utility"}},
		VolumeMounts: []corev1.VolumeMount{{Name: "plugins", MountPath: "/var/lib/kubelet/device-plugins"}},
	})
	pod.Spec.Volumes = []corev1.Volume{{Name: "plugins", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/device-plugins"},
	}}}
	if err := at.Delete(t.Context(), pod.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := at.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, err := at.Log(context.Background(), pod.Name, "plugin")
			t.Logf("the plugin's log (%v):\n%s", err, log)
		}
	})
	if _, err := at.WaitRunning(t.Context(), pod.Name, patience); err != nil {
		t.Fatal(err)
	}
}

// fill creates a pod that fills its memory, and returns the GPU on which the oracle sees the memory.
func fill(t *testing.T, name string, limits testbed.Limits, env ...corev1.EnvVar) (uuid string, bytes uint64) {
	t.Helper()
	container := testbed.Container("main", limits, "fill", "--hold", "3600")
	container.Image, container.Env = testbed.CUDAImage, env
	if _, err := bed.Create(t.Context(), testbed.Pod(name, container)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			messages, err := bed.Messages(context.Background(), name)
			t.Logf("events of %s (%v): %q", name, err, messages)
		}
		if err := bed.Delete(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return filled(t, name)
}

func filled(t *testing.T, name string) (uuid string, bytes uint64) {
	t.Helper()
	var result testbed.Fill
	if err := bed.WaitResult(t.Context(), name, "main", patience, &result); err != nil {
		t.Fatal(err)
	}
	pod, err := bed.WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	held, err := bed.Held(pod)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != 1 {
		t.Fatalf("by the oracle, %s holds memory on %d GPUs: %v", name, len(held), held)
	}
	for uuid, bytes = range held {
		return uuid, bytes
	}
	return "", 0
}

// configure changes the agent's configuration until the test ends.
func configure(t *testing.T, text string) {
	t.Helper()
	before, err := bed.SetConfig(t.Context(), text, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := bed.SetConfig(context.Background(), before, patience); err != nil {
			t.Error(err)
		}
	})
}

func metricIs(t *testing.T, name string, labels map[string]string, want float64) {
	t.Helper()
	eventually.Holds(t, patience, fmt.Sprintf("%s%v is %v", name, labels, want), func() bool {
		got, err := bed.Metric(t.Context(), name, labels)
		return err == nil && got == want
	})
}

// TestBesideNVIDIAsDevicePlugin runs NVIDIA's device plugin on a node of nri-vgpu. Each program
// allocates one of two GPUs. Then the plugin offers both GPUs, and nri-vgpu withholds its GPU.
func TestBesideNVIDIAsDevicePlugin(t *testing.T) {
	ours, theirs := bed.UUIDs[0], bed.UUIDs[1]
	configure(t, fmt.Sprintf("[node]\nexempt_namespaces = [%q]\n[node.gpus]\nexclude = [%q]\n", operator, theirs))
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, gpuMemory/mib, patience); err != nil {
		t.Fatal(err)
	}
	plug(t, theirs)
	if err := bed.WaitCapacity(t.Context(), plugged, 1, patience); err != nil {
		t.Fatal(err)
	}
	t.Run("each container has a GPU of its plugin", func(t *testing.T) {
		if uuid, bytes := fill(t, "plugged", testbed.Limits{plugged: 1}); uuid != theirs || bytes < gpuMemory-mib {
			t.Errorf("the plugin's pod holds %d bytes of %s, want all of %s", bytes, uuid, theirs)
		}
		if uuid, bytes := fill(t, "own", testbed.Limits{testbed.Memory: 1024}); uuid != ours || bytes != 1024*mib {
			t.Errorf("nri-vgpu's pod holds %d bytes of %s, want 1024 MiB of %s", bytes, uuid, ours)
		}
		metricIs(t, "nri_vgpu_foreign_containers", map[string]string{"resource": plugged}, 1)
		metricIs(t, "nri_vgpu_gpus_left_out", nil, 1)
		if err := bed.RestartAgent(t.Context(), patience); err != nil {
			t.Fatal(err)
		}
		if uuid, _ := filled(t, "plugged"); uuid != theirs {
			t.Errorf("after a restart of the agent, the plugin's pod is on %s", uuid)
		}
		metricIs(t, "nri_vgpu_unadjusted_containers", nil, 0)
		metricIs(t, "nri_vgpu_unaccounted_processes_found_total", map[string]string{"kind": "pod"}, 0)
		metricIs(t, "nri_vgpu_gpu_offered_twice", map[string]string{"uuid": ours}, 0)
	})
	t.Run("no container sees both GPUs", func(t *testing.T) {
		container := testbed.Container("main", testbed.Limits{plugged: 1}, "linger")
		container.Env = []corev1.EnvVar{{Name: visibleDevices, Value: "all"}}
		if _, err := bed.Create(t.Context(), testbed.Pod("greedy", container)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := bed.Delete(context.Background(), "greedy"); err != nil {
				t.Error(err)
			}
		})
		eventually.Holds(t, patience, "the pod is refused", func() bool {
			messages, err := bed.Messages(t.Context(), "greedy")
			return err == nil && strings.Contains(strings.Join(messages, "\n"), "would see GPU "+ours+", which nri-vgpu offers, by NVIDIA_VISIBLE_DEVICES=all")
		})
	})
	t.Run("a GPU that both offer is withheld", func(t *testing.T) { offerTwice(t, ours) })
}

// offerTwice makes NVIDIA's device plugin offer both GPUs.
func offerTwice(t *testing.T, ours string) {
	plug(t, "all")
	metricIs(t, "nri_vgpu_gpu_offered_twice", map[string]string{"uuid": ours}, 1)
	err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool {
		_, offers := node.Status.Capacity[testbed.Memory]
		for _, c := range node.Status.Conditions {
			if c.Type == "VGPUReady" {
				return !offers && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, ours) && strings.Contains(c.Message, plugged)
			}
		}
		return false
	})
	if err != nil {
		t.Error(err)
	}
	eventually.Holds(t, patience, "the doctor reports the GPU", func() bool {
		out, _ := bed.Vgpuctl(t.Context(), "doctor") // fails, because the node has a problem
		return strings.Contains(out, "foreign") && strings.Contains(out, "node.gpus.exclude") && strings.Contains(out, ours)
	})
	plug(t, bed.UUIDs[1])
	metricIs(t, "nri_vgpu_gpu_offered_twice", map[string]string{"uuid": ours}, 0)
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, gpuMemory/mib, patience); err != nil {
		t.Error(err)
	}
}

// TestPluginUnderOurName checks that nri-vgpu withholds the GPUs of a plugin whose resource an enabled
// dialect uses.
func TestPluginUnderOurName(t *testing.T) {
	configure(t, fmt.Sprintf("[node]\nexempt_namespaces = [%q]\nforeign_resources = []\n[dialects.hami]\nenabled = true\n", operator))
	plug(t, bed.UUIDs[1])
	metricIs(t, "nri_vgpu_gpu_offered_twice", map[string]string{"uuid": bed.UUIDs[0]}, 0)
	metricIs(t, "nri_vgpu_gpu_offered_twice", map[string]string{"uuid": bed.UUIDs[1]}, 1)
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, gpuMemory/mib, patience); err != nil {
		t.Error(err)
	}
	eventually.Holds(t, patience, "the doctor reports the GPU", func() bool {
		out, _ := bed.Vgpuctl(t.Context(), "doctor") // fails, because the node has a problem
		return strings.Contains(out, "foreign") && strings.Contains(out, bed.UUIDs[1])
	})
}
