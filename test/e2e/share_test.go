// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// These constants bound the deviation of a share of a GPU's time, in points. A machine that also
// runs a whole node can keep a program from using its share, but never increases the share.
const (
	shareOver  = 3
	shareUnder = 8
)

// spinner returns a pod that wants all of a GPU's time, and has a limit. The pod also has a part of
// the processors, so that the pod waits for the GPU and not for processors.
func spinner(name, kernelUS string, percent int64) *corev1.Pod {
	container := testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: percent},
		"spin", "--kernel-us", kernelUS, "--duration", "3600")
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	return testbed.Pod(name, container)
}

// gpuTimes returns the GPU time that each pod has had so far, according to the oracle.
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

// shares returns the pods' parts of the GPU's time in percent, while a function runs.
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
	eventually.Holds(t, patience, name+" uses the GPU", func() bool {
		times, _ := gpuTimes(t, []*corev1.Pod{pod})
		return times[0] > 100*time.Millisecond
	})
	return pod
}

// waits returns the time for which the pods' processes have waited for processors so far.
func waits(t *testing.T, pods []*corev1.Pod) time.Duration {
	t.Helper()
	var sum time.Duration
	for _, pod := range pods {
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
				sum += waitOf(t, task)
			}
		}
	}
	return sum
}

// waitOf returns a thread's waiting time from its schedstat, which contains the running time and
// the waiting time in ns.
func waitOf(t *testing.T, schedstat string) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(schedstat)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0 // the thread has ended
	}
	var ran, waited int64
	if _, errScan := fmt.Sscan(string(raw), &ran, &waited); err != nil || errScan != nil {
		t.Fatal(errors.Join(err, errScan))
	}
	return time.Duration(waited)
}

// sharesWithoutAgent kills the agent, and returns the pods' shares in the next two seconds. If the
// pods waited for processors meanwhile, the result is void, and sharesWithoutAgent measures again.
// If the node runs no other test, the pods wait for some 2 % of the time.
func sharesWithoutAgent(t *testing.T, pods []*corev1.Pod) []float64 {
	t.Helper()
	const interval, idle = 2 * time.Second, 200 * time.Millisecond
	for range 4 {
		before := waits(t, pods)
		got := shares(t, pods, func() {
			from := time.Now()
			killAgent(t)
			time.Sleep(time.Until(from.Add(interval)))
		})
		waited := waits(t, pods) - before
		t.Logf("%.1f; they waited for processors for %s", got, waited.Round(time.Millisecond))
		if waited < idle {
			return got
		}
	}
	t.Fatalf("the pods waited for processors for more than %s of each %s, so their shares of the GPU have no meaning", idle, interval)
	return nil
}

// killAgent kills the agent, and waits until kubelet has started the agent again.
func killAgent(t *testing.T) {
	t.Helper()
	before := agentPid(t)
	signal(t, before, syscall.SIGKILL)
	eventually.Holds(t, patience, "the agent is back", func() bool {
		pids := nodeProcesses(t, isAgent)
		return len(pids) == 1 && pids[0] != before
	})
}

// TestSharesHoldWhileTheAgentIsKilled kills the agent, which lends unused time by the policy share,
// every two seconds while two pods want all of a GPU. Each pod keeps its guarantee. A new agent
// knows which pods may borrow.
func TestSharesHoldWhileTheAgentIsKilled(t *testing.T) {
	setConfig(t, func(config string) string {
		return strings.Replace(config, "\npolicy = \"cap\"", "\npolicy = \"share\"", 1)
	})
	create(t, spinner("borrower", "200", 30))
	borrower := works(t, "borrower")
	borrows := func() bool {
		return shares(t, []*corev1.Pod{borrower}, func() { time.Sleep(time.Second) })[0] > 80
	}
	eventually.Holds(t, patience, "the pod that is alone borrows the other pods' time", borrows)

	create(t, spinner("owner", "20000", 70))
	owner := works(t, "owner")
	one, _ := onlyGPU(t, held(t, borrower))
	if other, _ := onlyGPU(t, held(t, owner)); one != other {
		t.Fatalf("the pods are on %s and %s, want the same GPU", one, other)
	}
	pods, guarantees := []*corev1.Pod{borrower, owner}, []float64{30, 70}
	for range 4 {
		got := sharesWithoutAgent(t, pods)
		for i, guarantee := range guarantees {
			if got[i] > guarantee+shareOver || got[i] < guarantee-shareUnder {
				t.Errorf("pods with guarantees of %v had %.1f %% of the GPU's time", guarantees, got)
			}
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
	eventually.Holds(t, patience, "the pod that is alone again borrows the other pod's time", borrows)
}

// TestPodsChooseTheirMaximum checks the annotations by which a pod borrows idle time, on a node that lets
// pods choose. One pod has a maximum, and a pod on the other GPU has none.
func TestPodsChooseTheirMaximum(t *testing.T) {
	setConfig(t, func(config string) string {
		return strings.Replace(config, "\npods_may_choose = false", "\npods_may_choose = true", 1)
	})
	with := func(name, gpu string, annotations map[string]string) *corev1.Pod {
		pod := spinner(name, "2000", 20)
		annotations[choice.UseUUID] = gpu
		pod.Annotations = annotations
		create(t, pod)
		return works(t, name)
	}
	bounded := with("bounded", bed.UUIDs[0], map[string]string{"gpu-compute-limit." + testbed.Cores: "50"})
	greedy := with("greedy", bed.UUIDs[1], map[string]string{"nri-vgpu.io/compute-policy": "share"})
	var had []float64
	eventually.Holds(t, patience, "both pods borrow up to their maximum", func() bool {
		had = shares(t, []*corev1.Pod{bounded, greedy}, func() { time.Sleep(2 * time.Second) })
		return had[0] > 50-shareUnder && had[1] > 80
	})
	if had[0] > 50+shareOver {
		t.Errorf("the pod with a maximum of 50 %% had %.1f %%", had[0])
	}
}
