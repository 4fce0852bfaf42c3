// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/releases"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// alarms are reasons of Events about pods. These Events are false because all pods of the test keep
// to their limits.
var alarms = []string{
	events.VGPUEvicted.Name, events.VGPUNotEvicted.Name, events.VGPUUnadjusted.Name, events.VGPUStopped.Name,
	events.VGPUUsageForged.Name, events.VGPUBypassed.Name,
}

// withdraws are the versions of releases whose agents report no registered plugin until the runtime
// has the plugin. These agents may also report no registered plugin at their end. Meanwhile, the
// Node offers no capacity, as docs/operations.md of these releases states.
var withdraws = []string{"0.0.1-f23a02b1375a"}

// watch records each change of the memory that the Node offers.
type watch struct {
	*testing.T
	end  context.CancelFunc
	done chan struct{}
	mu   sync.Mutex
	// seen counts the times that the Node offered each amount of memory, and last is the last
	// amount.
	seen map[int64]int
	last int64
	why  []string // the Node's condition, each time it offered no capacity
}

// watchNode watches the Node's memory until the test ends, or until stop.
func (s *suite) watchNode() *watch {
	s.Helper()
	ctx, end := context.WithCancel(s.Context())
	w := &watch{T: s.T, end: end, done: make(chan struct{}), seen: map[int64]int{}}
	node, err := s.bed.Node(ctx)
	s.must(err)
	w.note(node)
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.follow(ctx, s.bed)
		}
	}()
	s.Cleanup(func() { end(); <-w.done })
	return w
}

func (w *watch) follow(ctx context.Context, bed *testbed.Bed) {
	changes, err := bed.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, bed.Cluster.NodeName).String(),
	})
	if err != nil {
		time.Sleep(100 * time.Millisecond)
		return
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if node, ok := change.Object.(*corev1.Node); ok {
			w.note(node)
		}
	}
}

func (w *watch) note(node *corev1.Node) {
	offered := node.Status.Allocatable[testbed.Memory]
	w.mu.Lock()
	defer w.mu.Unlock()
	ready := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == nodestatus.ConditionReady
	})
	if offered.Value() == 0 && ready >= 0 {
		why := node.Status.Conditions[ready]
		w.why = append(w.why, why.Reason+": "+why.Message)
	}
	w.seen[offered.Value()]++
	w.last = offered.Value()
}

// stop ends the watch, and checks that the Node offered the same amount all the time. The patcher
// did not withdraw the capacity, and no lost ledger increased the capacity.
func (w *watch) stop() {
	w.Helper()
	w.end()
	<-w.done
	if len(w.seen) != 1 || w.seen[0] > 0 {
		w.Errorf("the Node offered these amounts of memory, want one: %v %q", w.seen, w.why)
	}
}

// stopAfter ends the watch of a period in which agents of a release started or ended. If the release
// withdraws capacity meanwhile, stopAfter checks that the Node offered no capacity only for this
// reason. The Node must never offer another amount, and must finally offer the same amount again.
func (w *watch) stopAfter(old releases.Release) {
	w.Helper()
	if slices.Contains(withdraws, old.Version) {
		w.end()
		<-w.done
		w.Logf("while agents of %s started or ended, the Node offered these amounts of memory: %v", old.Version, w.seen)
		if w.onlyWithdrawn() && len(w.why) == w.seen[0] && w.last != 0 {
			delete(w.seen, 0)
		}
	}
	w.stop()
}

// onlyWithdrawn reports whether the Node offered no capacity only because the plugin was not
// registered. After its registration, an agent of these releases reports healthy GPUs before its
// first list of the pods. Meanwhile, the Node still offers no capacity.
func (w *watch) onlyWithdrawn() bool {
	for i, why := range w.why {
		withdrawn := strings.HasPrefix(why, nodestatus.ReasonPluginNotRegistered+":")
		unlisted := i > 0 && strings.HasPrefix(why, nodestatus.ReasonGPUsHealthy+":")
		if !withdrawn && !unlisted {
			return false
		}
	}
	return true
}

// assignments returns the allocations of the pods' containers, from the containers' files.
func (w *work) assignments() map[string]string {
	w.Helper()
	all := map[string]string{}
	for _, pod := range w.pods() {
		content, err := os.ReadFile(filepath.Join(w.bed.ContainerFiles(pod, "main"), paths.Assignment))
		w.must(err)
		// Other releases may write other fields.
		var file struct {
			Allocation struct {
				PodUID  string `json:"podUID"`
				Devices []struct {
					UUID        string `json:"uuid"`
					MemoryBytes uint64 `json:"memoryBytes"`
					ComputePPM  uint32 `json:"computePPM"`
				} `json:"devices"`
			} `json:"allocation"`
		}
		w.must(json.Unmarshal(content, &file))
		given, err := json.Marshal(file.Allocation)
		w.must(err)
		all[pod.Name] = string(given)
	}
	return all
}

// checkKept checks that no file of the pods was lost or renamed, and that the agent reads the pods'
// pages. No Event or log line may report the pods.
func (w *work) checkKept() {
	w.Helper()
	if given := w.assignments(); !maps.Equal(given, w.given) {
		w.Errorf("the pods had the allocations %v, now %v", w.given, given)
	}
	aside, err := filepath.Glob(filepath.Join(w.bed.Cluster.Root(), paths.Containers("/run/nri-vgpu"), "*", "*", "*.bad-*"))
	w.must(err)
	if len(aside) > 0 {
		w.Errorf("the agent renamed %v", aside)
	}
	w.checkAlarms()
}

// checkAlarms checks that no Event reports a pod.
func (w *work) checkAlarms() {
	w.Helper()
	list, err := w.bed.Client.CoreV1().Events(metav1.NamespaceAll).List(w.Context(), metav1.ListOptions{})
	w.must(err)
	for i := range list.Items {
		if e := &list.Items[i]; slices.Contains(alarms, e.Reason) || e.Reason == "Evicted" {
			w.Errorf("%s %s: %s", e.Reason, e.InvolvedObject.Name, e.Message)
		}
	}
}

// checkPages checks that the agent reads the full use of the pods from the pods' pages, and that no
// use exceeds the limits.
func (w *work) checkPages() {
	w.Helper()
	for _, pod := range w.pods() {
		labels := map[string]string{"namespace": pod.Namespace, "pod": pod.Name}
		most := pod.Spec.Containers[0].Resources.Limits[testbed.Memory]
		eventually.Holds(w, patience, "the agent reads the usage page of "+pod.Name, func() bool {
			counted, err := w.bed.Metric(w.Context(), "nri_vgpu_container_accounted_memory_bytes", labels)
			return err == nil && uint64(counted) >= w.held(pod) && int64(counted) <= most.Value()<<20
		})
	}
}

// checkTools checks that the pod's vgpuctl understands the agent and the pod's pages.
func (w *work) checkTools(pod string) {
	w.Helper()
	for _, command := range []string{"status", "ping", "ps"} {
		stdout, stderr, err := w.bed.ExecOutput(w.Context(), pod, "/usr/local/nri-vgpu/bin/vgpuctl", command)
		if err != nil || stdout == "" {
			w.Errorf("vgpuctl %s in %s printed %q and %q: %v", command, pod, stdout, stderr, err)
		}
	}
}

// mix runs programs of two releases side by side. First, the old patcher runs beside the new agent.
// Then the old agent runs beside the new patcher and a new guard.
func (w *work) mix(old, now releases.Release) {
	w.Helper()
	w.checkPages()
	w.checkTools(w.steady.Name)
	w.say("patcher %s beside agent %s", old.Version, now.Version)
	w.put(old, "patcher", "extended-resource-patcher")
	w.check()
	w.fits("old-patcher")
	w.say("agent %s beside patcher and guard %s", old.Version, now.Version)
	w.put(now, "patcher", "extended-resource-patcher")
	// While the runtime is down, no plugin is registered, and the Node offers nothing.
	w.watch.stop()
	w.must(w.bed.Cluster.Restart(w.Context(), cluster.Containerd))
	w.must(w.bed.WaitNodeReady(w.Context(), patience))
	w.guardIs(now)
	w.must(w.bed.WaitAdvertised(w.Context()))
	w.watch = w.watchNode()
	w.put(old, "agent", "nri-vgpu")
	w.check()
	w.fits("old-agent")
	w.checkGuard("old-agent-new-guard")
}

// TestNext upgrades to a next release and back. The next release has another version of the pages,
// and new fields in all data that programs exchange.
func TestNext(t *testing.T) {
	s, next := newSuite(t, "next", func(b releases.Builder) (releases.Release, error) { return b.Next(t.Context()) })
	s.say("installing %s", s.this().Version)
	s.release("install", s.this())
	s.must(s.bed.WaitAdvertised(t.Context()))
	s.loadGuard()
	w := s.startWork("")

	s.say("upgrading to %s", next.Version)
	s.release("upgrade", next)
	w.check()
	s.checkRuns(next.Version)
	w.checkPages()
	w.checkTools(w.steady.Name)
	s.checkGuard("next-agent")
	modern := s.startWork("-next")

	s.say("rolling back")
	s.rollback("1")
	w.check()
	w.checkPages()
	modern.check()
	modern.checkTools(modern.steady.Name)
	s.fits("rolled-back")
	s.checkGuard("this-agent")
	modern.restart()

	s.say("upgrading again")
	s.release("upgrade", next)
	w.check()
	modern.check()
	modern.checkPages()
	w.watch.stop()
}

// restart ends the container of a pod. The installed release limits the next container.
func (w *work) restart() {
	w.Helper()
	w.must(w.bed.KillContainer(w.again))
	nudge := w.bed.Nudger(w.again.Name)
	pod, err := w.bed.WaitPod(w.Context(), w.again.Name, "restarted", patience, func(pod *corev1.Pod) bool {
		nudge(w.Context())
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].RestartCount == 1 && status[0].State.Running != nil
	})
	w.must(err)
	w.again = pod
	eventually.Holds(w, patience, "the restarted container has its memory, and no more", func() bool { return w.held(w.again) == memory<<20/2 })
	w.pids = w.processes()
}

// put replaces a DaemonSet by the DaemonSet of a release, with the release's configuration.
func (s *suite) put(r releases.Release, template, daemonSet string) {
	s.Helper()
	for _, part := range []struct{ template, verb string }{{"configmap", "apply"}, {template, "replace"}} {
		text := s.run(s.helm, slices.Concat([]string{"template", "nri-vgpu", r.Chart(), "--namespace", namespace,
			"--show-only", "templates/" + part.template + ".yaml"}, values(r))...)
		if part.template == "configmap" {
			text = strings.Replace(text, "name: nri-vgpu\n", "name: "+configOf(r)+"\n", 1)
		}
		text = strings.ReplaceAll(text, "configMap: {name: nri-vgpu}", "configMap: {name: "+configOf(r)+"}")
		if !strings.Contains(text, configOf(r)) {
			s.Fatalf("%s of %s has no name of a ConfigMap to replace:\n%s", part.template, r.Version, text)
		}
		path := filepath.Join(s.TempDir(), part.template+".yaml")
		s.must(os.WriteFile(path, []byte(text), 0o600))
		s.kubectl(part.verb, "-f", path)
	}
	s.kubectl("-n", namespace, "rollout", "status", "daemonset/"+daemonSet, "--timeout=2m")
}

// guardIs waits until the runtime runs the guard of a release.
func (s *suite) guardIs(r releases.Release) {
	s.Helper()
	eventually.Holds(s, patience, "the guard of "+r.Version+" runs", func() bool {
		status, loaded, err := guardfile.Loaded(s.bed.Cluster.Root() + "/run/nri-vgpu")
		return err == nil && loaded && status.Version == r.Version && len(s.guards()) == 2
	})
}

// configOf returns the name of the ConfigMap that put makes.
func configOf(r releases.Release) string { return "nri-vgpu-" + r.Version }

// guardsRefusal matches the refusals of this release's guard and of the previous guard.
var guardsRefusal = regexp.MustCompile("nri-vgpu's guard refuses.* its pod (asks for|requests) a GPU")

// checkGuard removes the agent, and checks that the guard refuses a pod that requests a GPU, by the
// list that the agent has written.
func (s *suite) checkGuard(name string) {
	s.Helper()
	pod := testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "fill"))
	pod.Spec.InitContainers = []corev1.Container{testbed.Container("before", nil, "sleep", "15")}
	created, err := s.bed.Create(s.Context(), pod)
	s.must(err)
	eventually.Holds(s, patience, "the agent lists "+name, func() bool {
		listed, err := os.ReadFile(filepath.Join(s.bed.Cluster.Root(), paths.AskingPods("/var/lib/nri-vgpu")))
		return err == nil && strings.Contains(string(listed), string(created.UID))
	})
	s.must(s.bed.StopAgent(s.Context(), patience))
	eventually.Holds(s, patience, "the guard refuses "+name, func() bool {
		messages, err := s.bed.Messages(s.Context(), name)
		return err == nil && slices.ContainsFunc(messages, func(m string) bool {
			return guardsRefusal.MatchString(m)
		})
	})
	s.must(s.bed.StartAgent(s.Context(), patience))
	nudge := s.bed.Nudger(name)
	_, err = s.bed.WaitPod(s.Context(), name, "succeeded once the agent is back", patience, func(pod *corev1.Pod) bool {
		nudge(s.Context())
		return pod.Status.Phase == corev1.PodSucceeded
	})
	s.must(err)
	s.must(s.bed.Delete(s.Context(), name))
}
