// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// TestPodWait checks that the creation of a container waits for an unknown pod for the configured time,
// and then fails. The runtime is NRI's, and the API server does not answer.
func TestPodWait(t *testing.T) {
	for _, wait := range []time.Duration{100 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(wait.String(), timed.Test(func(t testing.TB) {
			const delay = 150 * time.Millisecond
			if took := refusalTime(t, wait); took < wait || took > wait+delay {
				t.Errorf("with nri.pod_wait = %v, the refusal took %v", wait, took)
			}
		}))
	}
}

// refusalTime returns the time that an agent with this pod_wait takes to refuse a container of an
// unknown pod.
func refusalTime(t testing.TB, wait time.Duration) time.Duration {
	t.Helper()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: silent.URL})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	runtime := startRuntime(t, dir)
	p := assembledWith(t, client, func(cfg *config.Config) {
		cfg.NRI.SocketPath = filepath.Join(dir, "nri.sock")
		cfg.NRI.PodWait.Duration = wait
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		p.hook.Serve(ctx)
		close(served)
	}()
	defer func() {
		cancel()
		<-served
	}()
	pod := &api.PodSandbox{Id: "sandbox", Uid: "uid", Namespace: "ns", Name: "pod"}
	request := &api.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "id", Name: "main"}}
	var took time.Duration
	eventually.Holds(t, 10*time.Second, "the agent refuses a container of an unknown pod", func() bool {
		begin := time.Now()
		_, err := runtime.CreateContainer(ctx, request)
		took = time.Since(begin)
		return err != nil && strings.Contains(err.Error(), "its pod's request is unknown")
	})
	return took
}

// startRuntime starts NRI's part of a container runtime, with its socket in dir.
func startRuntime(t testing.TB, dir string) *adaptation.Adaptation {
	t.Helper()
	sync := func(ctx context.Context, list adaptation.SyncCB) error {
		_, err := list(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("containerd", "v2.4.2", sync, update,
		adaptation.WithSocketPath(filepath.Join(dir, "nri.sock")),
		adaptation.WithPluginPath(filepath.Join(dir, "plugins")),
		adaptation.WithPluginConfigPath(filepath.Join(dir, "conf.d")))
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Stop)
	return runtime
}
