// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	testNode   = "node-1"
	testMemory = "nri-vgpu.io/vgpu-memory"
	// promptly is the documented bound for the patcher to revert a drift: a second.
	promptly = time.Second
	// polled is the bound for changes that the poll of node.json must notice.
	polled = pollInterval + promptly
)

// rig is a running patcher, its API server and the agent's report.
type rig struct {
	t       *testing.T
	api     *nodeAPI
	path    string
	patcher *Patcher
	log     *logBuffer
}

func startRig(t *testing.T, cfg config.Config, staleAfter time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, api: newNodeAPI(t), path: filepath.Join(t.TempDir(), nodereport.FileName), log: &logBuffer{}}
	patcher, err := New(Options{
		Client: r.api.client(), NodeName: testNode, Config: cfg, ReportPath: r.path, StaleAfter: staleAfter,
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.patcher = patcher
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		patcher.Run(ctx)
	}()
	return r
}

func (r *rig) report(change func(*nodereport.Report)) {
	r.t.Helper()
	report := nodereport.Report{
		Heartbeat: time.Now(), PluginRegistered: true, GPUs: []gpu.GPU{testGPU("GPU-a", true)},
	}
	if change != nil {
		change(&report)
	}
	report.Sums = healthySums(report.GPUs, r.patcher.opts.Config)
	r.write(report)
}

func (r *rig) write(report nodereport.Report) {
	r.t.Helper()
	if err := nodereport.Write(r.path, report); err != nil {
		r.t.Fatal(err)
	}
}

// await fails unless the Node has exactly these extended resources in time.
func (r *rig) await(want Resources, limit time.Duration) {
	r.t.Helper()
	if err := eventually.Wait(limit, "the Node has the resources", func() bool { return cmp.Equal(want, r.api.extended()) }); err != nil {
		r.t.Fatalf("%v (-want +got):\n%s\nlog:\n%s", err, cmp.Diff(want, r.api.extended()), r.log)
	}
}

// still fails if the patcher sends a patch within d.
func (r *rig) still(d time.Duration) {
	r.t.Helper()
	before := r.api.patchCount()
	time.Sleep(d)
	if after := r.api.patchCount(); after != before {
		r.t.Errorf("%d patches while nothing was to be done", after-before)
	}
}

func worth(cfg config.Config, gpus ...gpu.GPU) Resources {
	return Resources(request.Capacity(gpus, cfg))
}

func TestPatcherAdvertisesRestoresAndIsIdle(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	full := worth(cfg, testGPU("GPU-a", true))
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	r.still(200 * time.Millisecond) // without a report, the patcher knows nothing

	r.report(nil)
	r.await(full, polled)
	if n := r.api.patchCount(); n != 1 {
		t.Errorf("capacity and allocatable took %d patches, want 1", n)
	}
	r.report(nil)
	r.still(2 * pollInterval) // a heartbeat alone writes nothing

	for _, hostile := range []string{
		`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"0"},"allocatable":{"nri-vgpu.io/vgpu-memory":"0"}}}`,
		`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"999999"}}}`,
		`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":null},"allocatable":{"nri-vgpu.io/vgpu-memory":null}}}`,
		`{"metadata":{"annotations":{"nri-vgpu.io/advertised":null}},"status":{"capacity":null,"allocatable":null}}`,
	} {
		r.api.interfere(hostile)
		r.await(full, promptly)
	}
	r.api.delete()
	r.still(200 * time.Millisecond) // without a Node, the patcher has nothing to patch
	r.api.create()
	r.await(full, promptly)
	r.still(200 * time.Millisecond)
}

// TestWritesFollowReports checks that the client of the API server delays no write of a Node, although
// the agent reports at its highest rate.
func TestWritesFollowReports(t *testing.T) {
	client, err := NewClient(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	limiter := client.CoreV1().RESTClient().GetRateLimiter()
	if pace := limiter.QPS(); pace < nodereport.PerSecond {
		t.Errorf("the agent reports %d times a second, and the client sends %v requests", nodereport.PerSecond, pace)
	}
}

// TestLooksWakeThePatcherForNewReports checks that the frequent checks of the report's file end the
// patcher's wait only if the file is new.
func TestLooksWakeThePatcherForNewReports(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, api: newNodeAPI(t), path: filepath.Join(t.TempDir(), nodereport.FileName)}
	patcher, err := New(Options{Client: r.api.client(), NodeName: testNode, Config: nativeOnly(), ReportPath: r.path, StaleAfter: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r.patcher = patcher
	for range 3 {
		r.report(nil)
		if _, err := patcher.reports.observe(time.Now()); err != nil {
			t.Fatal(err)
		}
		look, woken := make(chan time.Time), make(chan bool)
		go func() { woken <- patcher.wait(t.Context(), nil, look, nil) }()
		for range 2 { // the second check shows that the first check did not end the wait
			select {
			case look <- time.Now():
			case <-woken:
				t.Fatal("an unchanged report ends the wait")
			}
		}
		r.report(nil)
		var reported bool
		select { // the second check may have followed the report
		case reported = <-woken:
		case look <- time.Now():
			select {
			case reported = <-woken:
			case look <- time.Now():
				t.Fatal("a new report does not end the wait")
			}
		}
		if !reported {
			t.Error("the wait ended without a report")
		}
	}
}

func TestPatcherWithdrawsByRemoving(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	full := worth(cfg, testGPU("GPU-a", true))
	for name, change := range map[string]func(*nodereport.Report){
		"plugin lost":   func(r *nodereport.Report) { r.PluginRegistered = false },
		"GPU unhealthy": func(r *nodereport.Report) { r.GPUs[0].Healthy = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, cfg, time.Minute)
			r.api.create()
			r.report(nil)
			r.await(full, polled)
			r.report(change)
			r.await(Resources{}, polled)
			r.api.interfere(`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"5"}}}`)
			r.await(Resources{}, promptly)
			r.report(nil)
			r.await(full, polled)
		})
	}
	t.Run("heartbeat stale", func(t *testing.T) {
		t.Parallel()
		const staleAfter = 2 * time.Second
		r := startRig(t, cfg, staleAfter)
		r.api.create()
		r.report(nil)
		r.await(full, polled)
		r.await(Resources{}, staleAfter+polled)
		r.report(nil)
		r.await(full, polled)
	})
}

// TestPatcherLeavesTheNodeWhileThePodsAreUnknown checks that the Node keeps its resources while a
// starting agent does not know the node's pods yet. The patcher may also have just started.
func TestPatcherLeavesTheNodeWhileThePodsAreUnknown(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	r := startRig(t, cfg, time.Minute)
	beat := func() nodereport.Report {
		return nodereport.Report{Heartbeat: time.Now(), PluginRegistered: true, GPUs: []gpu.GPU{testGPU("GPU-a", true)}}
	}
	r.write(beat())
	eventually.Holds(t, polled, "the report is read", func() bool { return r.patcher.snapshot().observed.Report != nil })
	r.api.createWith(`{"metadata":{"annotations":{"nri-vgpu.io/advertised":"` + testMemory + `"}},
		"status":{"capacity":{"` + testMemory + `":"4096"},"allocatable":{"` + testMemory + `":"4096"}}}`)
	time.Sleep(2 * pollInterval)
	r.await(Resources{testMemory: 4096}, 0)

	lowered := Resources{testMemory: 6000}
	known := beat()
	known.Sums = &nodereport.Sums{Free: lowered}
	r.write(known)
	r.await(lowered, polled)
	r.write(beat())
	r.still(2 * pollInterval)
	r.api.interfere(`{"status":{"capacity":{"` + testMemory + `":"7"}}}`)
	r.await(lowered, promptly)
}

func TestPatcherRemovesWhatAnEarlierConfigurationAdvertised(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	r := startRig(t, cfg, time.Minute)
	r.api.createWith(`{"metadata":{"annotations":{"nri-vgpu.io/advertised":"old.example/gpu"}},
		"status":{"capacity":{"old.example/gpu":"4","other.example/nic":"2"},
		          "allocatable":{"old.example/gpu":"4","other.example/nic":"2"}}}`)
	r.report(nil)
	want := worth(cfg, testGPU("GPU-a", true))
	want["other.example/nic"] = 2
	r.await(want, polled)
}

func TestPatcherSurvivesAFailingAPIServer(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	r.api.breakWith(http.StatusInternalServerError)
	r.report(nil)
	time.Sleep(polled)
	tries := r.api.patchCount()
	if tries < 2 || tries > 8 {
		t.Errorf("%d tries in %s, want a few, ever further apart", tries, polled)
	}
	if code, body := get(t, r.patcher, "/readyz"); code == http.StatusOK {
		t.Errorf("ready while patches fail: %s", body)
	}
	if code, body := get(t, r.patcher, "/healthz"); code != http.StatusOK {
		t.Errorf("the patcher is not alive while patches fail, so a probe would kill the patcher: %s", body)
	}
	r.api.breakWith(0)
	r.await(worth(cfg, testGPU("GPU-a", true)), retryCap)
	if n := strings.Count(r.log.String(), "asked to fail"); n != 1 {
		t.Errorf("the same error is logged %d times", n)
	}
}

func TestPatcherSlowsDownInAFight(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	full := worth(cfg, testGPU("GPU-a", true))
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	r.report(nil)
	r.await(full, polled)
	const hostile = `{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"7"}}}`
	for range restoreBurst {
		r.api.interfere(hostile)
		r.await(full, promptly)
	}
	before := r.api.patchCount()
	// The loop ends by time, not by count, since the loop must end before the next restore is due,
	// even on a busy machine.
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		r.api.interfere(hostile)
		time.Sleep(20 * time.Millisecond)
	}
	if n := r.api.patchCount() - before; n > 1 {
		t.Errorf("%d patches within a second of the fight, want at most 1", n)
	}
	r.await(full, restoreInterval+promptly)
	if n := strings.Count(r.log.String(), "keeps changing"); n != 1 {
		t.Errorf("the fight is logged %d times, want once:\n%s", n, r.log)
	}
}

func TestPatcherReportsItsState(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	r := startRig(t, cfg, time.Minute)
	time.Sleep(100 * time.Millisecond)
	if code, body := get(t, r.patcher, "/readyz"); code == http.StatusOK || !strings.Contains(body, testNode) {
		t.Errorf("without its Node: %d %s", code, body)
	}
	r.api.create()
	r.report(nil)
	full := worth(cfg, testGPU("GPU-a", true))
	r.await(full, polled)
	r.api.interfere(`{"status":{"capacity":{"nri-vgpu.io/vgpu-memory":"7"}}}`)
	r.await(full, promptly)

	eventually.Holds(t, promptly, "it is ready, as the Node is as it should be", func() bool {
		code, _ := get(t, r.patcher, "/readyz")
		return code == http.StatusOK
	})
	wants := []string{
		`nri_vgpu_patcher_patches_total{reason="advertise"} 1`,
		`nri_vgpu_patcher_patches_total{reason="restore"} 1`,
		`nri_vgpu_patcher_reconciles_total{result="written"} 2`,
		`nri_vgpu_patcher_reconciles_total{result="failed"} 0`,
		`nri_vgpu_patcher_reconciled 1`,
		`nri_vgpu_patcher_build_info{go_version="` + runtime.Version() + `",node="` + testNode + `",version=`,
		`nri_vgpu_patcher_patches_total{reason="withdraw"} 0`,
		`nri_vgpu_patcher_drift_restored_total 1`,
		`nri_vgpu_patcher_desired{resource="` + testMemory + `"} 16384`,
		`nri_vgpu_patcher_advertised{resource="` + testMemory + `"} 16384`,
		`nri_vgpu_patcher_report_age_seconds `,
	}
	// The patcher counts a write after the API server's answer.
	eventually.Succeeds(t, promptly, "the metrics have all series", func(context.Context) error {
		_, metrics := get(t, r.patcher, "/metrics")
		for _, want := range wants {
			if !strings.Contains(metrics, want) {
				return fmt.Errorf("metrics lack %q", want)
			}
		}
		return nil
	})
}

func TestKept(t *testing.T) {
	p := remover(t, newNodeAPI(t))
	const other = "example.com/nic"
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ownnode.Advertised: testMemory + ",nri-vgpu.io/vgpu-cores," + other}},
		Status: corev1.NodeStatus{Allocatable: resourceList(map[string]string{
			testMemory: "1", "nri-vgpu.io/vgpu-cores": "0", "nri-vgpu.io/vgpu-number": "3", other: "2",
		})},
	}
	if diff := cmp.Diff(Resources{testMemory: 1}, p.kept(node).resources); diff != "" {
		t.Errorf("resources of an earlier patcher (-want +got):\n%s", diff)
	}
	p.applied = &offer{resources: Resources{testMemory: 7}}
	if diff := cmp.Diff(Resources{testMemory: 7}, p.kept(node).resources); diff != "" {
		t.Errorf("resources of this patcher (-want +got):\n%s", diff)
	}
}

func TestLastWriter(t *testing.T) {
	at := func(second int) *metav1.Time {
		when := metav1.NewTime(time.Date(2026, 11, 21, 14, 0, second, 0, time.UTC))
		return &when
	}
	entry := func(manager, subresource string, when *metav1.Time) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: when}
	}
	tests := []struct {
		name    string
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		{"nobody", nil, ""},
		{"we alone", []metav1.ManagedFieldsEntry{entry(FieldManager, "status", at(9))}, ""},
		{"not of the status", []metav1.ManagedFieldsEntry{entry("kubectl", "", at(9)), entry("kubelet", "status", at(1))}, "kubelet"},
		{"behind us", []metav1.ManagedFieldsEntry{entry(FieldManager, "status", at(9)), entry("kubelet", "status", at(1))}, "kubelet"},
		{"the newest first", []metav1.ManagedFieldsEntry{entry("b", "status", at(2)), entry("a", "status", at(1))}, "b"},
		{"the newest last", []metav1.ManagedFieldsEntry{entry("a", "status", at(1)), entry("b", "status", at(2))}, "b"},
		{"one without a time", []metav1.ManagedFieldsEntry{entry("a", "status", at(1)), entry("b", "status", nil)}, "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := lastWriter(&corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: tt.entries}}); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	good := Options{Client: newNodeAPI(t).client(), NodeName: testNode, ReportPath: "x", StaleAfter: time.Second}
	tests := []struct {
		name   string
		change func(*Options)
	}{
		{"no client", func(o *Options) { o.Client = nil }},
		{"no node", func(o *Options) { o.NodeName = "" }},
		{"no report", func(o *Options) { o.ReportPath = "" }},
		{"no age", func(o *Options) { o.StaleAfter = 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opts := good
			tt.change(&opts)
			if _, err := New(opts); err == nil {
				t.Error("accepted")
			}
		})
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, p *Patcher, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler := p.Probes()
	if path == "/metrics" {
		handler = endpoint.Metrics(p.Metrics(), slog.New(slog.DiscardHandler))
	}
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(recorder.Body)
	if err != nil {
		t.Fatal(err)
	}
	return recorder.Code, string(body)
}

// logBuffer collects the log of a running patcher.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
