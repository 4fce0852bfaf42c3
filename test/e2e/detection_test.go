// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// detected is the time within which the agent must know an unauthorised user of a GPU.
const detected = 10 * time.Second

// arounder returns a container whose root user moves the interposer on a writable root file
// system. The loader does not search at the new path.
func arounder() corev1.Container {
	return testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "sh", "-c",
		"mv /usr/local/nri-vgpu /usr/local/elsewhere && exec fill --max 3GiB --hold 3600")
}

// waitHeld waits until a pod holds more than this number of bytes, according to the oracle.
func waitHeld(t *testing.T, pod *corev1.Pod, bytes uint64) {
	t.Helper()
	eventually.Succeeds(t, patience, "pod "+pod.Name+" holds memory", func(context.Context) error {
		var sum uint64
		for _, b := range held(t, pod) {
			sum += b
		}
		if sum <= bytes {
			return fmt.Errorf("%d bytes, want more than %d", sum, bytes)
		}
		return nil
	})
}

// onNode starts a program of the workloads on the node itself, outside of all
// pods.
func onNode(t *testing.T, program string, args ...string) {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(source, "build", "workload", program))
	if err != nil {
		t.Fatal(err)
	}
	path := "/run/e2e-" + program
	if err := os.WriteFile(filepath.Join(bed.Cluster.Root(), path), content, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := bed.Cluster.Command(ctx, append([]string{path}, args...)...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = command.Wait()
		endOnNode(t, filepath.Base(path))
		_ = os.Remove(filepath.Join(bed.Cluster.Root(), path))
	})
}

// endOnNode ends the node's program with this name.
func endOnNode(t *testing.T, name string) {
	t.Helper()
	o, err := oracle.Open(filepath.Join(bed.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	processes, err := o.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.Comm == name {
			_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		}
	}
}

func unaccounted(t *testing.T, kind string, n float64) {
	t.Helper()
	waitMetric(t, detected, n, "nri_vgpu_unaccounted_processes", map[string]string{"kind": kind})
}

// TestWhoGoesAroundIsDetectedAndStopped checks that the agent reports unauthorised users of a GPU
// within ten seconds, and stops these users if configured. The agent stops no other process.
func TestWhoGoesAroundIsDetectedAndStopped(t *testing.T) {
	check := untouched(t)
	create(t, testbed.Pod("around", arounder()))
	pod := running(t, "around")
	waitHeld(t, pod, 2*gib)
	waitPodEvent(t, "around", events.VGPUBypassed.Name, "nri-vgpu's files were removed", detected)
	unaccounted(t, "bypass", 1)

	onNode(t, "fill", "--max", "64MiB", "--hold", "3600")
	unaccounted(t, "host", 1)
	waitNodeEvent(t, events.VGPUBypassed.Name, "outside of all pods")

	stop := func(config string) string {
		return strings.Replace(config, "\naction = \"report\"", "\naction = \"stop\"", 1)
	}
	setConfig(t, stop)
	if _, err := bed.WaitPod(t.Context(), "around", "ended", patience, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed
	}); err != nil {
		t.Fatal(err)
	}
	waitPodEvent(t, "around", events.VGPUStopped.Name, "stopped process", detected)
	unaccounted(t, "bypass", 0)
	unaccounted(t, "host", 1) // host_action is report
	check()
}

// drawer returns a container that requests all of the driver, and uses its GPU like a program that
// uses Vulkan and not CUDA.
func drawer() corev1.Container {
	container := testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "sh", "-c",
		`[ "$NVIDIA_DRIVER_CAPABILITIES" = compute,utility ] && exec gpusim hold --graphics --busy --memory 300MiB /dev/gpusim`)
	container.Env = append(container.Env, corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "all"})
	return container
}

// TestGraphicsAreDetectedAndStopped checks that a process that uses a GPU without CUDA, and thus
// without limits, counts as a bypass unless the configuration allows graphics.
func TestGraphicsAreDetectedAndStopped(t *testing.T) {
	check := untouched(t)
	create(t, testbed.Pod("draws", drawer()))
	pod := running(t, "draws")
	waitHeld(t, pod, 200*mib)
	waitPodEvent(t, "draws", events.VGPUBypassed.Name, "by graphics APIs", detected)
	unaccounted(t, "bypass", 1)
	uuid, _ := onlyGPU(t, held(t, pod))
	waitMetric(t, detected, 1, "nri_vgpu_gpu_api_processes", map[string]string{"uuid": uuid, "api": "graphics"})

	setConfig(t, func(config string) string {
		return strings.Replace(config, "\ndriver_capabilities = [\"compute\", \"utility\"]", "\ndriver_capabilities = [\"compute\", \"graphics\"]", 1)
	})
	// The process's memory still counts for its container.
	waitMetric(t, detected, 300*mib, "nri_vgpu_container_observed_memory_bytes", map[string]string{"pod": "draws"})
	unaccounted(t, "bypass", 0)

	setConfig(t, func(config string) string {
		config = strings.Replace(config, "\ndriver_capabilities = [\"compute\", \"graphics\"]", "\ndriver_capabilities = [\"compute\", \"utility\"]", 1)
		return strings.Replace(config, "\naction = \"report\"", "\naction = \"stop\"", 1)
	})
	if _, err := bed.WaitPod(t.Context(), "draws", "ended", patience, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed
	}); err != nil {
		t.Fatal(err)
	}
	waitPodEvent(t, "draws", events.VGPUStopped.Name, "stopped process", detected)
	unaccounted(t, "bypass", 0)
	check()
}

// setConfig changes the agent's configuration until the test ends.
func setConfig(t *testing.T, change func(string) string) {
	t.Helper()
	before, err := bed.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after := change(before)
	if after == before {
		t.Fatal("the configuration is as before")
	}
	t.Cleanup(func() {
		if _, err := bed.SetConfig(context.Background(), before, patience); err != nil {
			t.Error(err)
		}
	})
	if _, err := bed.SetConfig(t.Context(), after, patience); err != nil {
		t.Fatal(err)
	}
}

// TestForgedUsagePage checks a container that deletes its processes' use from its usage page.
// After the agent's next check, the container gets no more than its limit.
func TestForgedUsagePage(t *testing.T) {
	pod := idle(t, "forger", 4096)
	background(t, "forger", "fill", "--max", "2GiB", "--hold", "3600")
	waitHeld(t, pod, 2*gib)
	background(t, "forger", "pester", "--way", "forge", "--duration", "3600")
	waitPodEvent(t, "forger", events.VGPUUsageForged.Name, "usage page", detected)

	fill := execFill(t, "forger", "--chunk", "64MiB")
	if sum := fill.GrantedBytes + contextBytes; sum > 4*gib-2*gib-contextBytes {
		t.Errorf("beside 2 GiB of 4 a process was granted %d bytes", sum)
	}
	if bytes, err := bed.Metric(t.Context(), "nri_vgpu_container_observed_memory_bytes", map[string]string{"pod": "forger"}); err != nil || bytes < 2*gib {
		t.Errorf("the agent observed %v bytes, want more than 2 GiB: %v", bytes, err)
	}
	endAll(t, "forger")
	// Once the page is correct again, the container has all of its memory again.
	waitMetric(t, detected, 0, "nri_vgpu_container_observed_memory_bytes", map[string]string{"pod": "forger"})
	if fill := execFill(t, "forger"); fill.GrantedBytes+contextBytes != 4*gib {
		t.Errorf("alone a process was granted %d bytes, want all but its context of 4 GiB", fill.GrantedBytes)
	}
}
