package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// Bounds on a share of a GPU's time, in points. A machine that runs a whole node
// besides can keep a program from using its share, but lets none have more.
const (
	shareOver  = 3
	shareUnder = 8
)

// spinner is a pod that wants all of a GPU's time and is given a part of it. It has
// a part of the processors, too: without any it waits for them, not for the GPU.
func spinner(name, kernelUS string, percent int64) *corev1.Pod {
	container := testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: percent},
		"spin", "--kernel-us", kernelUS, "--duration", "3600")
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	return testbed.Pod(name, container)
}

// gpuTimes is the time that each pod had of GPUs so far, by the oracle.
func gpuTimes(t *testing.T, pods []*corev1.Pod) (times []time.Duration, at time.Time) {
	t.Helper()
	o, err := oracle.Open(filepath.Join(bed.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	processes, err := o.Processes()
	at = time.Now()
	if err != nil {
		t.Fatal(err)
	}
	by := map[int]time.Duration{}
	for _, p := range processes {
		for _, g := range p.GPUs {
			by[p.Pid] += time.Duration(g.GPUTimeNs)
		}
	}
	for _, pod := range pods {
		pids, err := bed.Pids(pod)
		if err != nil {
			t.Fatal(err)
		}
		var sum time.Duration
		for _, pid := range pids {
			sum += by[pid]
		}
		times = append(times, sum)
	}
	return times, at
}

// shares are the pods' parts of the GPU's time in percent, while something is
// done.
func shares(t *testing.T, pods []*corev1.Pod, during func()) []float64 {
	t.Helper()
	before, from := gpuTimes(t, pods)
	during()
	after, to := gpuTimes(t, pods)
	var all []float64
	for i := range pods {
		all = append(all, 100*float64(after[i]-before[i])/float64(to.Sub(from)))
	}
	return all
}

// works waits until a pod uses the GPU.
func works(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := running(t, name)
	eventually(t, name+" uses the GPU", func() bool {
		times, _ := gpuTimes(t, []*corev1.Pod{pod})
		return times[0] > 100*time.Millisecond
	})
	return pod
}

// waits is how long each pod's processes waited for processors so far.
func waits(t *testing.T, pods []*corev1.Pod) []time.Duration {
	t.Helper()
	all := make([]time.Duration, len(pods))
	for i, pod := range pods {
		pids, err := bed.Pids(pod)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range tasks {
				var ran, waited int64
				if raw, err := os.ReadFile(task); err != nil {
					continue // the thread has ended
				} else if _, err := fmt.Sscan(string(raw), &ran, &waited); err != nil {
					t.Fatal(err)
				}
				all[i] += time.Duration(waited)
			}
		}
	}
	return all
}

func difference(to, from []time.Duration) []time.Duration {
	all := make([]time.Duration, len(to))
	for i := range to {
		all[i] = to[i] - from[i]
	}
	return all
}

// guaranteed tells whether each had its guarantee, and none more, but for what others
// left: it was lent to who wanted it.
func guaranteed(got, guarantees []float64) bool {
	left := 0.0
	for i := range got {
		left += max(guarantees[i]-got[i], 0)
	}
	for i := range got {
		if got[i] < guarantees[i]-shareUnder || got[i] > guarantees[i]+shareOver+left {
			return false
		}
	}
	return true
}

// killAgent kills the agent, and waits until kubelet has started it again.
func killAgent(t *testing.T) {
	t.Helper()
	before := agentPid(t)
	signal(t, before, syscall.SIGKILL)
	eventually(t, "the agent is back", func() bool {
		pids := nodeProcesses(t, isAgent)
		return len(pids) == 1 && pids[0] != before
	})
}

// By the policy share the agent lends what nobody uses; it is killed every two
// seconds while two pods want all of a GPU: each has what it was guaranteed, and
// nobody is hurt. A new agent knows who may borrow.
func TestSharesHoldWhileTheAgentIsKilled(t *testing.T) {
	setConfig(t, func(config string) string {
		return strings.Replace(config, "\npolicy = \"cap\"", "\npolicy = \"share\"", 1)
	})
	create(t, spinner("borrower", "200", 30))
	borrower := works(t, "borrower")
	borrows := func() bool {
		return shares(t, []*corev1.Pod{borrower}, func() { time.Sleep(time.Second) })[0] > 80
	}
	eventually(t, "the pod that is alone is lent the others' time", borrows)

	create(t, spinner("owner", "20000", 70))
	owner := works(t, "owner")
	one, _ := onlyGPU(t, held(t, borrower))
	if other, _ := onlyGPU(t, held(t, owner)); one != other {
		t.Fatalf("the pods are on %s and %s, want the same GPU", one, other)
	}
	pods, guarantees := []*corev1.Pod{borrower, owner}, []float64{30, 70}
	for range 4 {
		var got []float64
		for range 3 { // where the node was too busy with starting the agent, once more
			waited := waits(t, pods)
			got = shares(t, pods, func() {
				from := time.Now()
				killAgent(t)
				time.Sleep(time.Until(from.Add(2 * time.Second)))
			})
			t.Logf("%.1f; they waited for processors %v", got, difference(waits(t, pods), waited))
			if guaranteed(got, guarantees) {
				break
			}
		}
		if !guaranteed(got, guarantees) {
			t.Errorf("pods with guarantees of %v had %.1f %% of the GPU's time", guarantees, got)
		}
	}
	for _, before := range []*corev1.Pod{borrower, owner} {
		if after := running(t, before.Name); after.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("%s was restarted", before.Name)
		}
	}
	if err := bed.Delete(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod that is alone again is lent the other's time", borrows)
}
