// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// withVolume returns a pod with a volume for this mount. The volume contains the file "file".
func withVolume(name string, container corev1.Container, mount corev1.VolumeMount) *corev1.Pod {
	mount.Name = "own"
	container.VolumeMounts = []corev1.VolumeMount{mount}
	prepare := testbed.Container("prepare", nil, "sh", "-c", "echo forged > /own/file")
	prepare.VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/own"}}
	pod := testbed.Pod(name, container)
	pod.Spec.InitContainers = []corev1.Container{prepare}
	pod.Spec.Volumes = []corev1.Volume{{
		Name:         "own",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
	return pod
}

// TestMountsOverOursByDetoursAreRefused creates containers in which a link in the image redirects a
// volume to another place than its path. The runtime mounts the volume after our files, because the
// volume's path is longer, and hides our files.
func TestMountsOverOursByDetoursAreRefused(t *testing.T) {
	small(t)
	const detour = testbed.Detours
	for name, mount := range map[string]corev1.VolumeMount{
		"run-directory": {MountPath: detour + "/run"},
		"limits":        {MountPath: detour + "/run/limits", SubPath: "file"},
		"libraries":     {MountPath: detour + "/home"},
		"library":       {MountPath: detour + "/home/lib/libcuda.so.1", SubPath: "file"},
		"etc":           {MountPath: detour + "/etc"},
		"preload":       {MountPath: detour + "/etc/ld.so.preload", SubPath: "file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := withVolume("detour-"+name, testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "fill"), mount)
			create(t, pod)
			ended, err := bed.WaitPod(t.Context(), pod.Name, "refused", patience, func(pod *corev1.Pod) bool {
				return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
			})
			if err != nil {
				t.Fatal(err)
			}
			state := ended.Status.ContainerStatuses[0].State.Terminated
			if state == nil || !strings.Contains(state.Message, "nri-vgpu refuses") || !strings.Contains(state.Message, "volumeMount") {
				t.Errorf("the container was not refused for its volumeMount: %s", testbed.Describe(ended))
			}
		})
	}
	t.Run("harmless", func(t *testing.T) {
		t.Parallel()
		pod := withVolume("detour-harmless", filler("main", testbed.Limits{testbed.Memory: 1024}), corev1.VolumeMount{MountPath: detour + "/tmp"})
		create(t, pod)
		checkFilled(t, pod.Name, gib)
	})
}
