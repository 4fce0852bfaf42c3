// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// floodAsks is the number of containers of each pod that request a GPU: the allowed maximum.
	floodAsks = 64
	// floodAttempts is the number of attempts of the runtime to create a refused container.
	floodAttempts = 5
	// floodAtOnce is the number of pods that a kubelet admits to a node.
	floodAtOnce = 110
)

// onTmpfs makes nodes keep their files in memory, like the files in /run.
func onTmpfs(t testing.TB) {
	t.Helper()
	t.Setenv("TMPDIR", "/dev/shm")
}

// crowd adds a pod to the API server with containers that each request a MiB, and a last container
// that requests last MiB. The containers are sidecars or init containers; quotas count all init
// containers as one container.
func (n *node) crowd(uid string, containers int, last int64, sidecars bool) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid), ResourceVersion: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	for i := range containers {
		memory := int64(1)
		if i == containers-1 {
			memory = last
		}
		c := corev1.Container{Name: fmt.Sprint("c", i)}
		c.Resources.Limits = corev1.ResourceList{"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(memory, resource.DecimalSI)}
		if sidecars {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	n.api.change(func() { n.api.pods[uid] = pod })
}

// flood adds the i-th pod of a flood. Some pods fit. Other pods have a container that fits no GPU,
// or more concurrent containers than two GPUs have slots. A few pods exceed the allowed number of
// requesting containers.
func (n *node) flood(i int) (uid string) {
	uid = fmt.Sprint("flood-", i)
	switch {
	case i%50 == 0:
		n.crowd(uid, 3000, 1, false)
	case i%4 == 1:
		n.crowd(uid, floodAsks, 1<<20, false)
	case i%4 == 3:
		n.crowd(uid, floodAsks, 1, true)
	default:
		n.crowd(uid, floodAsks, 1, false)
	}
	return uid
}

// ask sends the runtime's request to create a container.
func (n *node) ask(pod *api.PodSandbox, name string) (time.Duration, error) {
	container := &api.Container{Id: pod.GetId() + "-" + name, PodSandboxId: pod.GetId(), Name: name}
	begin := time.Now()
	_, err := n.runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: container})
	return time.Since(begin), err
}

// end notifies the hook that a container has ended.
func (n *node) end(pod *api.PodSandbox, name string) {
	container := &api.Container{Id: pod.GetId() + "-" + name, PodSandboxId: pod.GetId(), Name: name}
	_, err := n.runtime.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: container})
	if err != nil {
		n.t.Error(err)
	}
}

// pour requests the containers of a flood's pod, one after another, until the hook has refused a
// container floodAttempts times.
func (n *node) pour(uid string, goes bool) (granted, refused int) {
	pod := sandbox(uid)
	for granted < floodAsks && refused < floodAttempts {
		name := fmt.Sprint("c", granted)
		if _, err := n.ask(pod, name); err != nil {
			refused++
			continue
		}
		n.end(pod, name)
		granted++
	}
	if goes {
		n.deletePod(uid)
	}
	return granted, refused
}

// neighbours adds pods beside a flood, of which every second one requests a GPU.
func (n *node) neighbours(count int) []string {
	uids := make([]string, count)
	for i := range uids {
		uids[i] = fmt.Sprint("neighbour-", i)
		name := "main"
		if i%2 == 0 {
			name = "main=16"
		}
		n.pod(uids[i], name)
	}
	return uids
}

// during requests the neighbours' containers repeatedly while meanwhile runs. during returns the
// runtime's waits.
func (n *node) during(uids []string, rest time.Duration, meanwhile func()) []time.Duration {
	over := make(chan struct{})
	var mu sync.Mutex
	var all []time.Duration
	var group sync.WaitGroup
	for _, uid := range uids {
		group.Go(func() {
			for pod := sandbox(uid); ; {
				select {
				case <-over:
					return
				case <-time.After(rest):
				}
				took, err := n.ask(pod, "main")
				if err != nil {
					n.t.Errorf("a neighbour was refused: %v", err)
				}
				n.end(pod, "main")
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
		})
	}
	meanwhile()
	close(over)
	group.Wait()
	slices.Sort(all)
	return all
}

// BenchmarkFlood measures how long the runtime waits for the containers of 20 pods, over NRI's own
// adaptation. The runtime also creates the containers of 1,000 other pods, 64 requests each, and
// the hook refuses some of the containers.
func BenchmarkFlood(b *testing.B) {
	const pods = 1000
	onTmpfs(b)
	for b.Loop() {
		n := newNode(b)
		uids := n.neighbours(20)
		for _, uid := range uids { // the normal pods have their part before the flood
			if _, err := n.ask(sandbox(uid), "main"); err != nil {
				b.Fatal(err)
			}
		}
		queue := make(chan string, pods)
		for i := range pods {
			queue <- n.flood(i)
		}
		close(queue)
		var granted, refused [floodAtOnce]int
		begin := time.Now()
		took := n.during(uids, 50*time.Millisecond, func() {
			var group sync.WaitGroup
			for k := range floodAtOnce {
				group.Go(func() {
					for uid := range queue {
						g, r := n.pour(uid, true)
						granted[k], refused[k] = granted[k]+g, refused[k]+r
					}
				})
			}
			group.Wait()
		})
		sum := func(counts [floodAtOnce]int) (total int) {
			for _, c := range counts {
				total += c
			}
			return total
		}
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
		b.ReportMetric(float64(sum(granted)), "granted")
		b.ReportMetric(float64(sum(refused)), "refused")
		b.ReportMetric(time.Since(begin).Seconds(), "s")
		for metric := range collect(n.hook.opts.Metrics.latency) {
			if h := metric.GetHistogram(); metric.GetLabel()[0].GetValue() == "CreateContainer" {
				b.ReportMetric(1000*h.GetSampleSum()/float64(h.GetSampleCount()), "handler-"+metric.GetLabel()[1].GetValue()+"-ms")
			}
		}
	}
}

// filesOf counts a pod's directories and files on the disk.
func (n *node) filesOf(t *testing.T, uid string) (directories, files int) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(n.cfg.Paths.RunDir, "containers", uid), func(_ string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			directories++
		default:
			files++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return directories, files
}

// TestAFloodTakesLittleWork counts the cost of a flood. Each pod takes one search, however often
// the hook refuses its containers. The number of files grows only with created containers.
func TestAFloodTakesLittleWork(t *testing.T) {
	onTmpfs(t)
	n := newNode(t)
	uids := n.neighbours(4)
	for _, uid := range uids {
		if _, err := n.ask(sandbox(uid), "main"); err != nil {
			t.Fatal(err)
		}
	}
	before := n.ledger.Searches()
	const pods = 60
	var granted, refused [pods]int
	n.during(uids, time.Millisecond, func() {
		var group sync.WaitGroup
		for i := range pods {
			uid := n.flood(i)
			group.Go(func() { granted[i], refused[i] = n.pour(uid, false) })
		}
		group.Wait()
	})
	if got := n.ledger.Searches() - before; got > pods {
		t.Errorf("%d searches for GPUs of %d pods", got, pods)
	}
	fits, none := 0, 0
	for i := range pods {
		switch {
		case granted[i] == floodAsks:
			fits++
			if _, files := n.filesOf(t, fmt.Sprint("flood-", i)); files > 4*floodAsks+1 {
				t.Errorf("flood-%d has %d files, at most four for each of %d containers and one more allowed", i, files, floodAsks)
			}
		case granted[i] == 0 && refused[i] == floodAttempts:
			none++
			if n.hook.opts.Store.HasFiles(fmt.Sprint("flood-", i)) {
				t.Errorf("flood-%d was refused and has files", i)
			}
		default:
			t.Errorf("flood-%d: %d granted, %d refused", i, granted[i], refused[i])
		}
	}
	if fits == 0 || none == 0 {
		t.Errorf("%d pods fit, %d do not: the test tests nothing", fits, none)
	}
}

// TestAPodIsReservedAtOnce checks that the first container of a pod writes its own files,
// and one file for all containers of the pod.
func TestAPodIsReservedAtOnce(t *testing.T) {
	n := newNode(t)
	n.crowd("u", floodAsks, 1, false)
	if _, err := n.ask(sandbox("u"), "c0"); err != nil {
		t.Fatal(err)
	}
	if directories, files := n.filesOf(t, "u"); directories != 2 || files != 5 {
		t.Errorf("the first container made %d directories and %d files, want 2 and 5", directories, files)
	}
	n.restartHook()
	if held := n.hook.Held("u"); len(held) != floodAsks {
		t.Errorf("after a restart the pod holds %d allocations, want %d", len(held), floodAsks)
	}
}

// TestAReservationIsWrittenOnce checks that the second container of a pod writes the file for all
// containers only if another program has removed the file. A pod with one container needs no such file.
func TestAReservationIsWrittenOnce(t *testing.T) {
	n := newNode(t)
	n.crowd("u", 3, 1, false)
	file := filepath.Join(n.cfg.Paths.RunDir, "containers", "u", "assignments.json")
	var files []os.FileInfo
	for i, name := range []string{"c0", "c1", "c2"} {
		if i == 2 {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.ask(sandbox("u"), name); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, info)
	}
	if !os.SameFile(files[0], files[1]) {
		t.Error("the second container wrote the file again")
	}
	n.run("single", "main=1024")
	if n.hook.opts.Store.Reserved("single") {
		t.Error("a pod with one container has a file for all containers")
	}
}
