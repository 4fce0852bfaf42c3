// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "time of a handler of agent, guard or stand-in", documented.Time(handlerPatience))
	documented.Bound(t, "handlers whose work has not ended", fmt.Sprintf("%d in each of agent, guard and stand-in", maxHandlers))
}

// TestHandlersThatHangAreBounded checks that the next handler fails at once and changes nothing
// while 64 handlers hang.
func TestHandlersThatHangAreBounded(t *testing.T) {
	files, err := store.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Store: files})
		hang := make(chan struct{})
		work := func(context.Context) bool { <-hang; return true }
		for range 64 {
			go func() { _, _ = within(t.Context(), h, work) }()
		}
		synctest.Wait()
		_, err := within(t.Context(), h, func(context.Context) bool { t.Error("it was begun"); return true })
		if !errors.Is(err, deadline.ErrFull) {
			t.Errorf("got %v", err)
		}
		close(hang)
		synctest.Wait()
		if done, err := within(t.Context(), h, func(context.Context) bool { return true }); !done || err != nil {
			t.Errorf("once they have ended: %v", err)
		}
	})
}

// TestHandlersLookAtManyVariables checks that the hook processes the largest allowed number of
// variables in time.
func TestHandlersLookAtManyVariables(t *testing.T) {
	n := newNode(t, withVersion("v2.2.0"))
	n.pod("asks", "main=1024")
	many := func(s *rspec.Spec) {
		for size := (&api.Container{Env: s.Process.Env}).SizeVT(); size < nri.MostBytes-(8<<10); {
			name := fmt.Sprintf("%x=", len(s.Process.Env))
			s.Process.Env = append(s.Process.Env, name)
			size += len(name) + 2
		}
	}
	spec, err := n.create("asks", many)
	if err != nil {
		t.Fatalf("it was not created: %.300v", err)
	}
	if count := len(spec.Process.Env); count < 50_000 {
		t.Errorf("it has only %d variables", count)
	}
	pod := sandbox("asks")
	container := fromSpec(pod, "main", spec)
	if err := n.runtime.StartContainer(t.Context(), &api.StartContainerRequest{Pod: pod, Container: container}); err != nil {
		t.Errorf("it was not started: %.300v", err)
	}
}
