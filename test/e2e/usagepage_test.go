// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// grow is a script that makes its usage page as large as possible. The script tries one way after
// another, without end, and ignores all failures. The page's own content stays.
const grow = `page=/run/nri-vgpu/usage
while :; do
	fallocate -l 10G $page
	fallocate --keep-size -l 10G $page
	dd if=/dev/zero of=$page bs=64k seek=34 conv=notrunc
	sleep 0.2
done`

// restricted returns a container that meets Pod Security's profile "restricted".
func restricted(c corev1.Container) corev1.Container {
	user, no, yes := int64(1000), false, true
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes,
		ReadOnlyRootFilesystem:   &yes,
		AllowPrivilegeEscalation: &no,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	return c
}

// TestATenantDoesNotFillTheNodesRun checks that a tenant that makes its usage page grow takes no
// space of the node's /run.
func TestATenantDoesNotFillTheNodesRun(t *testing.T) {
	used := watchRun(t)
	create(t, testbed.Pod("greedy", restricted(testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "sh", "-c", grow))))
	greedyPod := running(t, "greedy")
	waitLog(t, "greedy", "dd: error writing '/run/nri-vgpu/usage': No space left on device")

	create(t, testbed.Pod("beside-greedy", filler("main", testbed.Limits{testbed.Memory: 2048})))
	create(t, testbed.Pod("plain-beside-greedy", testbed.Container("main", nil, "sleep", "3600")))
	checkFilled(t, "beside-greedy", 2*gib)
	running(t, "plain-beside-greedy")
	if most := used(); most > 80 {
		t.Errorf("the node's /run was full to %d %%, want 80 %% at most", most)
	}

	// The next agent finds the previous agent's mounts, and removes them.
	mounts := usageMounts(t, greedyPod)
	if len(mounts) != 1 {
		t.Errorf("the pod's usage page is mounted at %v, want one place", mounts)
	}
	check := running(t, "beside-greedy")
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitRegistered(t)
	if now := usageMounts(t, greedyPod); !slices.Equal(now, mounts) {
		t.Errorf("with the next agent the pod's usage page is mounted at %v, want %v", now, mounts)
	}
	waitMetric(t, detected, 2*gib, "nri_vgpu_container_accounted_memory_bytes", map[string]string{"pod": check.Name})
	waitMetric(t, detected, 0, "nri_vgpu_container_accounted_memory_bytes", map[string]string{"pod": "greedy"})
	remove(t)
	for _, pod := range []*corev1.Pod{greedyPod, check} {
		waitNoUsageMounts(t, pod)
	}
}

// watchRun bounds the node's /run, to save the machine's memory. The returned function returns the
// highest use of /run, in percent.
func watchRun(t *testing.T) (most func() int64) {
	t.Helper()
	resize := func(ctx context.Context, size string) {
		if out, err := bed.Cluster.Exec(ctx, "mount", "-o", "remount,size="+size, "/run"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	resize(t.Context(), "128m")
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		resize(context.Background(), "50%")
	})
	var percent, looks atomic.Int64
	run := filepath.Join(bed.Cluster.Root(), "run")
	go func() {
		for ctx.Err() == nil {
			var fs unix.Statfs_t
			if err := unix.Statfs(run, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
				looks.Add(1)
				percent.Store(max(percent.Load(), int64((fs.Blocks-fs.Bfree)*100/fs.Blocks)))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() int64 {
		if looks.Load() == 0 {
			t.Error("the use of the node's /run was not measured")
		}
		return percent.Load()
	}
}

func waitLog(t *testing.T, pod, text string) {
	t.Helper()
	eventually.Succeeds(t, patience, fmt.Sprintf("%s prints %q", pod, text), func(ctx context.Context) error {
		log, err := bed.Log(ctx, pod, "main")
		if err == nil && !strings.Contains(log, text) {
			err = errors.New(log)
		}
		return err
	})
}

// usageMounts returns the mount points of a pod's usage pages on the node.
func usageMounts(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(filepath.Dir(bed.Cluster.Root()), "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(content)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, "/run/nri-vgpu/usage/"+string(pod.UID)+"/") {
			points = append(points, point)
		}
	}
	return points
}

func waitNoUsageMounts(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, patience, "the node unmounts the usage pages of "+pod.Name, func(context.Context) error {
		if mounts := usageMounts(t, pod); len(mounts) > 0 {
			return fmt.Errorf("%v", mounts)
		}
		return nil
	})
}
