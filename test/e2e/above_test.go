// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// unprivileged returns the security context that Pod Security's restricted profile requires.
func unprivileged() *corev1.SecurityContext {
	user, no, yes := int64(1000), false, true
	return &corev1.SecurityContext{
		RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// sharing returns a pod with a volume in two containers. The first container has a part of a GPU,
// and the volume at a path. The second container has the volume at /volume.
func sharing(name, at, main, sidecar string) *corev1.Pod {
	pod := testbed.Pod(name,
		testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "sh", "-c", main),
		testbed.Container("sidecar", nil, "sh", "-c", sidecar))
	pod.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	for k, path := range []string{at, "/volume"} {
		pod.Spec.Containers[k].SecurityContext = unprivileged()
		pod.Spec.Containers[k].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: path}}
	}
	return pod
}

// TestVolumesAboveOurs checks that the agent refuses volumes above our files. A writer of a volume
// can rename and remove the volume's content, including mounts in the volume, in every container
// and without being root.
func TestVolumesAboveOurs(t *testing.T) {
	small(t)
	const fill = "exec fill --max 3GiB --hold 3600"
	for name, pod := range map[string]*corev1.Pod{
		"usr-local": sharing("above-usr-local", "/usr/local", "mv /usr/local/nri-vgpu /usr/local/x; "+fill, "exec linger"),
		"etc": sharing("above-etc", "/etc", "while [ -e /etc/ld.so.preload ]; do sleep 0.1; done; unset LD_PRELOAD; "+fill,
			"until rm -f /volume/ld.so.preload; do sleep 0.1; done; exec linger"),
		"run": sharing("above-run", "/run", "mv /run/nri-vgpu /run/x; "+fill, "exec linger"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create(t, pod)
			seen, err := bed.WaitPod(t.Context(), pod.Name, "refused, or running", patience, func(pod *corev1.Pod) bool {
				for _, status := range pod.Status.ContainerStatuses {
					if waiting := status.State.Waiting; status.Name == "main" && (status.State.Running != nil || waiting != nil && waiting.Reason == "CreateContainerError") {
						return true
					}
				}
				return false
			})
			if err != nil {
				t.Fatal(err)
			}
			if line := testbed.Describe(seen); !strings.Contains(line, "would lie in a volume") {
				waitHeld(t, seen, 1*gib)
				t.Errorf("the container was not refused, and holds %v with a limit of 1 GiB: %s", held(t, seen), line)
			}
		})
	}
}

// TestFilesThatAreTakenAwayAreDetected checks that the agent detects the removal of our files by
// root in a running container or in another container of the pod. The agent detects the removal
// even though the container's processes have registered.
func TestFilesThatAreTakenAwayAreDetected(t *testing.T) {
	limits := testbed.Limits{testbed.Memory: 1024}
	hold := []string{"fill", "--max", "256MiB", "--hold", "3600"}
	moved := testbed.Pod("moved", testbed.Container("main", limits, hold...))
	unlinked := testbed.Pod("unlinked", testbed.Container("main", limits, hold...), testbed.Container("sidecar", nil, "linger"))
	shared := true
	unlinked.Spec.ShareProcessNamespace = &shared
	for _, pod := range []*corev1.Pod{moved, unlinked} {
		create(t, pod)
		waitHeld(t, running(t, pod.Name), 256*mib)
	}
	waitMetric(t, detected, 0, "nri_vgpu_displaced_containers", nil)
	shell(t, "moved", "main", "mv /usr/local/nri-vgpu /usr/local/x")
	shell(t, "unlinked", "sidecar", "for p in /proc/[0-9]*; do rm -f $p/root/etc/ld.so.preload; done")
	for _, pod := range []*corev1.Pod{moved, unlinked} {
		waitPodEvent(t, pod.Name, events.VGPUBypassed.Name, "files were removed", detected)
	}
	waitMetric(t, detected, 2, "nri_vgpu_displaced_containers", nil)
	unaccounted(t, "bypass", 2)
	shell(t, "moved", "main", "mv /usr/local/x /usr/local/nri-vgpu")
	waitMetric(t, detected, 1, "nri_vgpu_displaced_containers", nil)
}

// shell runs a script in a container.
func shell(t *testing.T, pod, container, script string) {
	t.Helper()
	if stdout, stderr, err := bed.ExecIn(t.Context(), pod, container, "sh", "-c", script); err != nil {
		t.Fatalf("%s in %s: %v: %s%s", script, pod, err, stdout, stderr)
	}
}
