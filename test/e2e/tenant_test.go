// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// idle starts a pod that only waits for kubectl exec.
func idle(t *testing.T, name string, memory int64) *corev1.Pod {
	t.Helper()
	create(t, testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: memory}, "linger")))
	return running(t, name)
}

// execFill fills a GPU in a pod's first container, and returns fill's report.
func execFill(t *testing.T, pod string, args ...string) testbed.Fill {
	t.Helper()
	var fill testbed.Fill
	if err := bed.Exec(t.Context(), pod, &fill, append([]string{"fill"}, args...)...); err != nil {
		t.Fatal(err)
	}
	return fill
}

func TestUnprivilegedUserIsLimited(t *testing.T) {
	small(t)
	user, no, yes := int64(1000), false, true
	container := filler("main", testbed.Limits{testbed.Memory: 2048})
	container.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes,
		ReadOnlyRootFilesystem:   &yes,
		AllowPrivilegeEscalation: &no,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	create(t, testbed.Pod("unprivileged", container))
	checkFilled(t, "unprivileged", 2*gib)
}

func TestStatusShowsLimitAndUse(t *testing.T) {
	small(t)
	create(t, testbed.Pod("status", filler("main", testbed.Limits{testbed.Memory: 2048})))
	pod := running(t, "status")
	uuid := checkFilled(t, "status", 2*gib)
	check := func(where string, holders []local.Holder) {
		t.Helper()
		if len(holders) != 1 || len(holders[0].GPUs) != 1 {
			t.Fatalf("%s: %+v, want one holder with one GPU", where, holders)
		}
		gpu := holders[0].GPUs[0]
		if gpu.UUID != uuid || gpu.MemoryLimitBytes != 2*gib || gpu.MemoryUsedBytes != 2*gib || gpu.ContextMemoryBytes != contextBytes {
			t.Errorf("%s: %+v, want %d bytes used of %d on %s", where, gpu, 2*gib, 2*gib, uuid)
		}
		if len(gpu.Processes) != 1 || gpu.Processes[0].Name != "fill" || gpu.Refusals == 0 {
			t.Errorf("%s: %+v, want refusals to the process fill", where, gpu)
		}
	}

	var inside []local.Holder
	if err := bed.Exec(t.Context(), "status", &inside, "/usr/local/nri-vgpu/bin/vgpuctl", "status", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	check("in the container", inside)

	output, err := bed.Vgpuctl(t.Context(), "status", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var all []local.Holder
	if err := json.Unmarshal([]byte(output), &all); err != nil {
		t.Fatalf("%v: %q", err, output)
	}
	ours := slices.DeleteFunc(all, func(h local.Holder) bool { return h.PodUID != string(pod.UID) })
	check("on the node", ours)
	if len(ours) == 1 && (ours[0].Namespace != "default" || ours[0].Pod != "status" || ours[0].Container != "main") {
		t.Errorf("on the node the holder is %+v", ours[0])
	}
}

func TestBrokenLimitsPageIsRefused(t *testing.T) {
	pod := idle(t, "broken", 2048)
	page := filepath.Join(bed.ContainerFiles(pod, "main"), limits.LimitsFile)
	good, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	// The test writes the file in place, because the container has this file mounted.
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(page, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	flipped := slices.Clone(good)
	for i := range flipped {
		flipped[i] ^= 0x5a
	}
	for name, bad := range map[string][]byte{
		"flipped":   flipped,
		"zeros":     make([]byte, len(good)),
		"truncated": good[:len(good)/2],
		"empty":     {},
	} {
		t.Run(name, func(t *testing.T) {
			write(bad)
			defer write(good)
			stdout, stderr, err := bed.ExecOutput(t.Context(), "broken", "fill")
			if err == nil {
				t.Fatalf("a process without a good limits page ran: %s", stdout)
			}
			if lines := strings.Split(strings.TrimSpace(stderr), "\n"); !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "nri-vgpu") }) {
				t.Errorf("nri-vgpu does not print the cause: %q", stderr)
			}
			if bytes := held(t, pod); len(bytes) != 0 {
				t.Errorf("by the oracle the pod holds %v", bytes)
			}
		})
	}
	if fill := execFill(t, "broken"); fill.GrantedBytes != 2*gib-contextBytes {
		t.Errorf("with its page back, a process got %d bytes, want %d", fill.GrantedBytes, 2*gib-contextBytes)
	}
	// The container's mount outlives the file's name.
	if err := os.Remove(page); err != nil {
		t.Fatal(err)
	}
	if fill := execFill(t, "broken"); fill.GrantedBytes != 2*gib-contextBytes {
		t.Errorf("after its page's name was removed, a process got %d bytes, want %d", fill.GrantedBytes, 2*gib-contextBytes)
	}
}

// TestLimitChangesUnderARunningProcess checks that a running process keeps to the current limit on
// its limits page.
func TestLimitChangesUnderARunningProcess(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit uint64
	}{{"lower", 2 * gib}, {"higher", 6 * gib}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pod := idle(t, "changing-"+test.name, 4096)
			dir := bed.ContainerFiles(pod, "main")
			devices, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
			if err != nil {
				t.Fatal(err)
			}
			type result struct {
				fill testbed.Fill
				err  error
			}
			done := make(chan result)
			go func() {
				var r result
				r.err = bed.Exec(t.Context(), pod.Name, &r.fill, "fill", "--delay", "5")
				done <- r
			}()
			// The memory of a context shows that the process runs. The process has not allocated
			// memory yet.
			if err := bed.WaitHeld(t.Context(), pod, 1, patience); err != nil {
				t.Error(err)
			}
			devices[0].MemoryBytes = test.limit
			if err := limits.Update(dir, devices); err != nil {
				t.Error(err)
			}
			r := <-done
			if r.err != nil {
				t.Fatal(r.err)
			}
			if want := test.limit - contextBytes; r.fill.GrantedBytes != want {
				t.Errorf("the process got %d bytes, want %d", r.fill.GrantedBytes, want)
			}
		})
	}
}
