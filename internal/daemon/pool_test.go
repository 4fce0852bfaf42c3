// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func pools(t *testing.T) config.File {
	t.Helper()
	file, err := config.ParseFile([]byte("[[pool]]\nname = \"few\"\nnode_selector = \"slots=few\"\n[pool.node]\nslots_per_gpu = 2"))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPool checks that the labels of the Node select the configuration, also if the API server
// answers late.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"slots": "few"}}})
		failures := 3
		client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("away")
		})
		got, err := Pool(t.Context(), pools(t), client, "node", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got.Pool != "few" || got.Node.SlotsPerGPU != 2 {
			t.Errorf("pool %q with %d slots", got.Pool, got.Node.SlotsPerGPU)
		}
		if got.Moved(map[string]string{"slots": "few", "other": ""}) || !got.Moved(nil) {
			t.Error("a Node moves by other labels than the pool's")
		}
	})
}

// TestPoolWaitsForLabels checks that no program applies a configuration while the Node's labels are
// unknown.
func TestPoolWaitsForLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := Pool(ctx, pools(t), fake.NewClientset(), "node", slog.New(slog.DiscardHandler)); err == nil {
			t.Error("a program chose a pool without a Node")
		}
	})
}

func TestNoPools(t *testing.T) {
	got, err := Pool(t.Context(), config.File{Config: config.Default()}, nil, "node", slog.New(slog.DiscardHandler))
	if err != nil || got.Pool != "" || got.Moved(map[string]string{"slots": "few"}) {
		t.Errorf("got pool %q, %v", got.Pool, err)
	}
}
