// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const advertisedNode = `{"metadata":{"labels":{"zone":"a"},"annotations":{"mine":"x","nri-vgpu.io/gpus":"[]","nri-vgpu.io/advertised":"nri-vgpu.io/vgpu-memory,old.example/gpu",
	"volcano.sh/node-vgpu-register":"r","volcano.sh/node-vgpu-handshake":"h"}},
	"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"VGPUReady","status":"False"}],
	"capacity":{"old.example/gpu":"4","other.example/nic":"2","nri-vgpu.io/vgpu-memory":"16384"},
	"allocatable":{"old.example/gpu":"4","other.example/nic":"2","nri-vgpu.io/vgpu-memory":"16384"}}}`

func remover(t *testing.T, api *nodeAPI) *Patcher {
	t.Helper()
	p, err := New(Options{
		Client: api.client(), NodeName: testNode, ReportPath: "/nowhere", StaleAfter: time.Minute,
		Config: config.Default(), Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRemoveTakesOffTheNodeWhatIsOurs(t *testing.T) {
	t.Parallel()
	api := newNodeAPI(t)
	api.createWith(advertisedNode)
	for range 2 {
		if err := remover(t, api).Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := api.patchCount(); n != 1 {
		t.Errorf("%d patches, want 1: the second time there is nothing to do", n)
	}
	node := api.node
	if len(node.Annotations) != 1 || node.Annotations["mine"] != "x" || node.Labels["zone"] != "a" {
		t.Errorf("left are the annotations %v and the labels %v", node.Annotations, node.Labels)
	}
	if c := node.Status.Conditions; len(c) != 1 || c[0].Type != "Ready" {
		t.Errorf("left are the conditions %v", c)
	}
	for name := range node.Status.Capacity {
		if name != "cpu" && name != "other.example/nic" {
			t.Errorf("left is the resource %s", name)
		}
	}
	if len(node.Status.Capacity) != 2 || len(node.Status.Allocatable) != 2 {
		t.Errorf("left are %v and %v", node.Status.Capacity, node.Status.Allocatable)
	}
}

func TestRemoveTriesAgain(t *testing.T) {
	t.Parallel()
	api := newNodeAPI(t)
	api.createWith(advertisedNode)
	api.breakWith(http.StatusInternalServerError)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	p, log := remover(t, api), &logBuffer{}
	p.opts.Log = slog.New(slog.NewTextHandler(log, nil))
	if err := p.Remove(ctx); err == nil || !strings.Contains(err.Error(), "asked to fail") {
		t.Errorf("an API server that fails: %v", err)
	}
	if n := strings.Count(log.String(), "asked to fail"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log)
	}
	done := make(chan error, 1)
	go func() { done <- remover(t, api).Remove(t.Context()) }()
	time.AfterFunc(200*time.Millisecond, func() { api.breakWith(0) })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRemoveTakesTheTaintAway(t *testing.T) {
	t.Parallel()
	api := newNodeAPI(t)
	api.createWith(`{"spec":{"taints":[{"key":"example.com/other","effect":"NoExecute"},{"key":"` + TaintKey + `","effect":"NoSchedule"}]}}`)
	p := remover(t, api)
	for _, step := range []struct {
		status int
		clean  bool
		failed bool
	}{{http.StatusInternalServerError, false, true}, {0, false, false}, {0, true, false}} {
		api.breakWith(step.status)
		if clean, err := p.removeOnce(t.Context()); clean != step.clean || (err != nil) != step.failed {
			t.Errorf("with status %d: removeOnce() = %t, %v", step.status, clean, err)
		}
	}
	if taints := api.node.Spec.Taints; len(taints) != 1 || taints[0].Key != "example.com/other" {
		t.Errorf("left are the taints %v", taints)
	}
}

// TestRemoveUnlocksTheNodeThatWasRegistered checks that Remove removes the lock of Volcano's
// scheduler together with the registration. Without a registration the lock belongs to another
// program.
func TestRemoveUnlocksTheNodeThatWasRegistered(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations string
		left        int
	}{
		"registered":     {`"volcano.sh/node-vgpu-register":"r","` + volcano.Lock + `":"l"`, 0},
		"not registered": {`"` + volcano.Lock + `":"l"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newNodeAPI(t)
			api.createWith(`{"metadata":{"annotations":{` + tt.annotations + `}}}`)
			if err := remover(t, api).Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(api.node.Annotations); n != tt.left {
				t.Errorf("left are the annotations %v", api.node.Annotations)
			}
		})
	}
}

// TestRemoveWithoutANode checks that Remove succeeds for a deleted Node.
func TestRemoveWithoutANode(t *testing.T) {
	t.Parallel()
	if err := remover(t, newNodeAPI(t)).Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
