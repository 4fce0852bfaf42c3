// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// growing lets containers of the namespace default have a whole GPU.
const growing = `
[[resize.maximum]]
namespace = "default"
memory_mib = 16384
cores = 100
`

// usable is the longest time from a request for more memory to the use of the memory. Single requests
// may take longer, because the machine also runs the node.
const usable = 100 * time.Millisecond

// follower returns a pod that takes all memory that it may have, also memory that it may have later.
func follower(name string, mib int64) *corev1.Pod {
	return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "fill", "--granularity", "2MiB", "--hold", "3600", "--follow"))
}

// request requests a size for the only container of a pod, by the annotation alone.
func request(t *testing.T, name string, size resize.Size) {
	t.Helper()
	text, err := resize.Format(map[string]resize.Size{"main": size})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, resize.Annotation, text)
	if _, err := bed.Client.CoreV1().Pods("default").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// holds waits until a pod physically holds an amount of memory, by the oracle.
func holds(t *testing.T, pod *corev1.Pod, bytes uint64) {
	t.Helper()
	eventually.Succeeds(t, patience, "the pod holds its limit", func(context.Context) error {
		held := held(t, pod)
		for _, n := range held {
			if len(held) == 1 && n == bytes {
				return nil
			}
		}
		return fmt.Errorf("pod %s holds %v by the oracle, want %d", pod.Name, held, bytes)
	})
}

// TestResize checks that the sizes of running containers change. The test covers growth, growth without
// room, a shrink below the use, and sizes that are not allowed.
func TestResize(t *testing.T) {
	configure(t, growing)
	create(t, follower("grows", 2048))
	create(t, testbed.Pod("shrinks", testbed.Container("main", testbed.Limits{testbed.Memory: 8192, testbed.Cores: 50},
		"sh", "-c", "fill --max 4GiB --hold 3600; sleep 2; exec fill --granularity 2MiB --hold 3600 --follow")))
	grows, shrinks := running(t, "grows"), running(t, "shrinks")
	holds(t, grows, 2*gib)
	holds(t, shrinks, 4*gib+contextBytes)

	var took []time.Duration
	for mib := int64(2048); mib < 8192; mib += 512 {
		begin := time.Now()
		request(t, "grows", resize.Size{MemoryMiB: uint64(mib + 512)})
		holds(t, grows, uint64(mib+512)<<20)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("512 MiB more were in use after %v (median), %v at most", took[len(took)/2], took[len(took)-1])
	if took[len(took)/2] > usable {
		t.Errorf("512 MiB more were in use after %v, want at most %v", took[len(took)/2], usable)
	}

	out, err := bed.KubectlVgpu(t.Context(), "resize", "grows", "--memory", "8320Mi", "--timeout", "3s")
	if err == nil || !strings.Contains(err.Error()+out, "deferred: its GPU has no room for 8320 MiB") {
		t.Errorf("without room: %v, %s", err, out)
	}
	waitPending(t, "grows", "Deferred: container main: its GPU has no room")
	request(t, "shrinks", resize.Size{MemoryMiB: 4096, Cores: 20})
	waitPending(t, "shrinks", "Deferred: container main: the container uses more than 4096 MiB")
	holds(t, shrinks, 4*gib+contextBytes)
	if err := bed.KillContainer(shrinks); err != nil { // the first of the pod's two programs
		t.Fatal(err)
	}
	holds(t, grows, 8320<<20)
	holds(t, shrinks, 4*gib)
	waitPending(t, "shrinks", "")
	waitPending(t, "grows", "")

	out, err = bed.KubectlVgpu(t.Context(), "resize", "grows", "--memory", "20Gi")
	if err == nil || !strings.Contains(err.Error()+out, "infeasible") {
		t.Errorf("more than a GPU: %v, %s", err, out)
	}
	out, err = bed.KubectlVgpu(t.Context(), "resize", "shrinks", "--cores", "35")
	if err != nil || out != "container main of pod default/shrinks now has 4096 MiB and 35 % of the time of each of its GPUs\n" {
		t.Errorf("printed %q, %v", out, err)
	}
	// The first container has taken the room that the second container had.
	out, err = bed.KubectlVgpu(t.Context(), "resize", "shrinks", "--reset", "--timeout", "3s")
	if err == nil || !strings.Contains(err.Error()+out, "deferred: its GPU has no room for 8192 MiB and 50 % of the time") {
		t.Errorf("the request back without room: %v, %s", err, out)
	}
	if err := bed.Delete(t.Context(), "grows"); err != nil {
		t.Fatal(err)
	}
	holds(t, shrinks, 8*gib)
	waitPending(t, "shrinks", "")
	now, err := bed.Client.CoreV1().Pods("default").Get(t.Context(), "shrinks", metav1.GetOptions{})
	if err != nil || len(now.Annotations) != 0 {
		t.Errorf("at the end the pod has annotations %v, %v", now.Annotations, err)
	}
}

// waitPending waits until a pod's request is pending with a reason and message that begin with a text;
// "" waits until no request is pending.
func waitPending(t *testing.T, name, text string) {
	t.Helper()
	_, err := bed.WaitPod(t.Context(), name, fmt.Sprintf("pending with %q", text), patience, func(pod *corev1.Pod) bool {
		has := ""
		for _, c := range pod.Status.Conditions {
			if c.Type == resize.ConditionPending && c.Status == corev1.ConditionTrue {
				has = c.Reason + ": " + c.Message
			}
		}
		return strings.HasPrefix(has, text) && (text != "" || has == "")
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestResizeSurvivesKills checks that a container gets its requested sizes although the agent is killed
// at random points. The container grows until a neighbour leaves no more room. Container and
// neighbour together never hold more than the GPU has, and the container never holds more than it
// has requested.
func TestResizeSurvivesKills(t *testing.T) {
	configure(t, growing)
	create(t, follower("neighbour", 8192))
	create(t, follower("killed", 1024))
	pod, neighbour := running(t, "killed"), running(t, "neighbour")
	holds(t, neighbour, 8*gib)
	var limit atomic.Uint64
	limit.Store(1 * gib)
	stop := watchMemory(t, pod, neighbour, &limit)
	random := rand.New(rand.NewPCG(1, 2))
	mib := uint64(1024)
	for mib < 8192 {
		mib += 640
		cores := 1 + random.Uint32N(100)
		limit.Store(mib << 20)
		request(t, "killed", resize.Size{MemoryMiB: mib, Cores: cores})
		time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
		if err := bed.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		reported(t, resize.Report{Size: resize.Size{MemoryMiB: mib, Cores: cores}, Requested: resize.Size{MemoryMiB: mib, Cores: cores}}, mib > 8192)
		if mib <= 8192 {
			holds(t, pod, mib<<20)
		}
	}
	stop()
}

// reported waits until the agent reports a size of the pod "killed", or defers it.
func reported(t *testing.T, want resize.Report, deferred bool) {
	t.Helper()
	eventually.Succeeds(t, patience, "the agent reports the size", func(ctx context.Context) error {
		now, err := bed.Client.CoreV1().Pods("default").Get(ctx, "killed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := resize.Reports(now)["main"]
		if deferred && got.Requested == want.Requested && got.Pending == resize.Deferred || !deferred && got == want {
			return nil
		}
		return fmt.Errorf("reported %+v, want %+v, deferred: %t", got, want, deferred)
	})
}

// watchMemory watches the memory that two pods of one GPU hold, according to the oracle. Until the
// returned function is called, watchMemory compares this memory with the first pod's limit and with the
// GPU's memory.
func watchMemory(t *testing.T, pod, neighbour *corev1.Pod, limit *atomic.Uint64) (stop func()) {
	t.Helper()
	uuid, _ := onlyGPU(t, held(t, neighbour))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
			mine, err := bed.Held(pod)
			if err != nil {
				t.Error(err)
				return
			}
			most := limit.Load() // a request precedes its effect
			others, err := bed.Held(neighbour)
			if err != nil || mine[uuid] > most || mine[uuid]+others[uuid] > gpuMemory {
				t.Errorf("the pod holds %d bytes, at most %d were requested, and its neighbour %d: %v", mine[uuid], most, others[uuid], err)
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}
