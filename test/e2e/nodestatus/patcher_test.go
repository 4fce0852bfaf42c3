// SPDX-License-Identifier: Apache-2.0

// Package nodestatus_test runs the patcher against a real API server, with exactly the rights of
// the released manifest.
package nodestatus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	memory = "nri-vgpu.io/vgpu-memory"
	full   = 16384 // MiB of one simulated card
	// promptly is the promised time to correct a drift.
	promptly = time.Second
)

var plane *controlPlane

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nri-vgpu-nodestatus-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	plane, err = startControlPlane(context.Background(), dir)
	if err == nil {
		err = install(context.Background(), plane.admin, manifest)
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if plane != nil {
		if stopErr := plane.stop(); err == nil {
			err = stopErr
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "control plane:", err)
		return 1
	}
	return code
}

// world is one Node and its patcher.
type world struct {
	t       *testing.T
	node    string
	admin   kubernetes.Interface
	report  string
	patches atomic.Int64
}

func newWorld(t *testing.T, node string) *world {
	t.Helper()
	w := &world{t: t, node: node, report: filepath.Join(t.TempDir(), nodereport.FileName), admin: clientOf(t, plane.admin)}
	w.register()
	t.Cleanup(func() { w.remove() })
	cfg := patcherConfig(t, node)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next, &w.patches} })
	patcher, err := nodestatus.New(nodestatus.Options{
		Client: clientOf(t, cfg), NodeName: node, Config: config.Default(),
		ReportPath: w.report, StaleAfter: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		patcher.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func patcherConfig(t *testing.T, node string) *rest.Config {
	t.Helper()
	cfg, err := credentials(t.Context(), plane.admin, account, node)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func clientOf(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// counter counts the patcher's writes.
type counter struct {
	next    http.RoundTripper
	patches *atomic.Int64
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.patches.Add(1)
	}
	return c.next.RoundTrip(r)
}

// register creates the Node as kubelet does.
func (w *world) register() {
	w.t.Helper()
	cpu := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	_, err := w.admin.CoreV1().Nodes().Create(context.Background(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: w.node},
		Status:     corev1.NodeStatus{Capacity: cpu, Allocatable: cpu},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove() {
	w.t.Helper()
	err := w.admin.CoreV1().Nodes().Delete(context.Background(), w.node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

func (w *world) agentReports(registered bool) {
	w.t.Helper()
	w.reports(registered, gpu.GPU{UUID: "GPU-a", MemoryBytes: 16 << 30, Healthy: true})
}

// reports writes a node report of one unused GPU.
func (w *world) reports(registered bool, g gpu.GPU) {
	w.t.Helper()
	gpus := []gpu.GPU{g}
	err := nodereport.Write(w.report, nodereport.Report{
		Heartbeat: time.Now(), PluginRegistered: registered, GPUs: gpus,
		Sums: &nodereport.Sums{Free: request.Capacity(gpus, config.Default())},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// newerAgentReports writes a report with fields that this patcher does not know. The GPU in the
// report is twice as large.
func (w *world) newerAgentReports() {
	w.t.Helper()
	report := w.report
	w.report += ".next"
	w.reports(true, gpu.GPU{UUID: "GPU-a", MemoryBytes: 32 << 30, Healthy: true})
	content, err := os.ReadFile(w.report)
	if err != nil {
		w.t.Fatal(err)
	}
	newer := strings.Replace(string(content), "{", `{"next":1,`, 1)
	newer = strings.Replace(newer, `"uuid":`, `"next":{"a":1},"uuid":`, 1)
	err = errors.Join(os.WriteFile(w.report, []byte(newer), 0o644), os.Rename(w.report, report))
	if err != nil {
		w.t.Fatal(err)
	}
	w.report = report
}

// patch changes the Node's status as another program would.
func (w *world) patch(body string) {
	w.t.Helper()
	_, err := w.admin.CoreV1().Nodes().Patch(w.t.Context(), w.node, types.MergePatchType, []byte(body), metav1.PatchOptions{}, "status")
	if err != nil {
		w.t.Fatal(err)
	}
}

// await waits until capacity and allocatable are full (or, for 0, absent).
func (w *world) await(want int64, limit time.Duration) {
	w.t.Helper()
	var node *corev1.Node
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var err error
		node, err = w.admin.CoreV1().Nodes().Get(w.t.Context(), w.node, metav1.GetOptions{})
		if err == nil && units(node.Status.Capacity) == want && units(node.Status.Allocatable) == want {
			return
		}
	}
	w.t.Fatalf("after %s %s is not %d: capacity %v, allocatable %v", limit, memory, want, node.Status.Capacity, node.Status.Allocatable)
}

// units returns the units of the memory resource: 0 if absent, -1 if present as 0.
func units(list corev1.ResourceList) int64 {
	quantity, ok := list[memory]
	if ok && quantity.IsZero() {
		return -1
	}
	return quantity.Value()
}

// run runs a subtest. During the subtest, failures of the world are failures of the subtest.
func (w *world) run(name string, test func()) {
	w.t.Run(name, func(t *testing.T) {
		outer := w.t
		defer func() { w.t = outer }()
		w.t = t
		test()
	})
}

func hostile(value any) string {
	list := map[string]any{memory: value}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": list, "allocatable": list}})
	if err != nil {
		panic(err) // a string or nil can be encoded
	}
	return string(body)
}

func TestPatcherKeepsItsNode(t *testing.T) {
	w := newWorld(t, "keeps")
	w.agentReports(true)
	w.await(full, 3*time.Second)
	if n := w.patches.Load(); n != 1 {
		t.Errorf("advertising took %d writes, want 1", n)
	}
	for name, value := range map[string]any{"zeroed": "0", "too little": "1", "too much": "999999", "removed": nil} {
		w.run(name, func() {
			w.patch(hostile(value))
			w.await(full, promptly)
		})
	}
	w.run("node deleted and registered again", func() {
		w.remove()
		w.register()
		w.await(full, promptly)
	})
	w.run("idle, while kubelet reports", func() {
		before := w.patches.Load()
		for i := range 4 {
			w.agentReports(true)
			w.patch(fmt.Sprintf(`{"metadata":{"annotations":{"kubelet":"%d"}},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, i, 10250+i))
			time.Sleep(time.Second)
		}
		if n := w.patches.Load() - before; n != 0 {
			w.t.Errorf("%d writes without a reason", n)
		}
	})
	w.run("withdrawn by removal, and back", func() {
		w.agentReports(false)
		w.await(0, 3*time.Second)
		w.agentReports(true)
		w.await(full, 3*time.Second)
	})
	w.run("reported by a newer agent", func() {
		w.newerAgentReports()
		w.await(2*full, 3*time.Second)
	})
}

func TestPatcherOutlivesTheAPIServer(t *testing.T) {
	w := newWorld(t, "outlives")
	w.agentReports(true)
	w.await(full, 3*time.Second)
	if err := plane.restartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.patch(hostile("1"))
	w.await(full, 10*time.Second) // the watch reconnects with a capped back-off
	w.patch(hostile("0"))
	w.await(full, promptly)
}

func TestPatcherMayNotDoMore(t *testing.T) {
	mine, other := newWorld(t, "mine"), newWorld(t, "other")
	mine.agentReports(true)
	mine.await(full, 3*time.Second)
	mine.patch(`{"status":{"capacity":{"example.com/nic":"4"},"allocatable":{"example.com/nic":"4"}}}`)
	// An attacker has stolen the credentials of a patcher.
	stolen := clientOf(t, patcherConfig(t, mine.node))
	nodes := stolen.CoreV1().Nodes()
	tests := []struct {
		name, node, body string
		subresource      []string
		allowed          bool
	}{
		{name: "own resources", node: mine.node, body: hostile("5"), subresource: []string{"status"}, allowed: true},
		{name: "another node", node: other.node, body: hostile("5"), subresource: []string{"status"}},
		{name: "native resources", node: mine.node, body: `{"status":{"capacity":{"cpu":"64"}}}`, subresource: []string{"status"}},
		{name: "a native resource removed", node: mine.node, body: `{"status":{"allocatable":{"cpu":null}}}`, subresource: []string{"status"}},
		{name: "another program's resource", node: mine.node, body: `{"status":{"capacity":{"nvidia.com/gpu":"8"}}}`, subresource: []string{"status"}},
		{name: "another program's resource zeroed", node: mine.node, body: `{"status":{"allocatable":{"example.com/nic":"0"}}}`, subresource: []string{"status"}},
		{name: "another program's resource removed", node: mine.node, body: `{"status":{"capacity":{"example.com/nic":null}}}`, subresource: []string{"status"}},
		{name: "another program's resource listed as the patcher's", node: mine.node, body: `{"metadata":{"annotations":{"nri-vgpu.io/advertised":"example.com/nic"}}}`, subresource: []string{"status"}},
		{name: "labels by the status", node: mine.node, body: `{"metadata":{"labels":{"zone":"secret"}}}`, subresource: []string{"status"}},
		{name: "annotations by the status", node: mine.node, body: `{"metadata":{"annotations":{"another":"x"}}}`, subresource: []string{"status"}},
		{name: "the list of its GPUs", node: mine.node, body: `{"metadata":{"annotations":{"nri-vgpu.io/gpus":"[]"}}}`, subresource: []string{"status"}, allowed: true},
		{name: "the list of its GPUs removed", node: mine.node, body: `{"metadata":{"annotations":{"nri-vgpu.io/gpus":null}}}`, subresource: []string{"status"}, allowed: true},
		{name: "the list of another node's GPUs", node: other.node, body: `{"metadata":{"annotations":{"nri-vgpu.io/gpus":"[]"}}}`, subresource: []string{"status"}},
		{name: "an unknown annotation", node: mine.node, body: `{"metadata":{"annotations":{"nri-vgpu.io/future":"x"}}}`, subresource: []string{"status"}},
		{name: "finalizers by the status", node: mine.node, body: `{"metadata":{"finalizers":["example.com/stays"]}}`, subresource: []string{"status"}},
		{name: "addresses", node: mine.node, body: `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`, subresource: []string{"status"}},
		{name: "the patcher's condition", node: mine.node, body: `{"status":{"conditions":[{"type":"VGPUReady","status":"True"}]}}`, subresource: []string{"status"}, allowed: true},
		{name: "conditions", node: mine.node, body: `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, subresource: []string{"status"}},
		{name: "labels and taints", node: mine.node, body: `{"spec":{"unschedulable":true}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := nodes.Patch(t.Context(), tt.node, types.MergePatchType, []byte(tt.body), metav1.PatchOptions{}, tt.subresource...)
			if tt.allowed && err != nil {
				t.Error(err)
			}
			if !tt.allowed && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("not refused: %v", err)
			}
		})
	}
	if _, err := stolen.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("pods can be listed: %v", err)
	}
	mine.await(full, promptly)
}
