// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
)

// plugin counts the containers that arrive in messages of the report.
type plugin struct {
	api.PluginService
	containers int
	configured string
}

func (p *plugin) Synchronize(_ context.Context, request *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
	p.containers += len(request.GetContainers())
	return &api.SynchronizeResponse{}, nil
}

func (p *plugin) Configure(_ context.Context, request *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	p.configured = request.GetRuntimeName()
	return &api.ConfigureResponse{}, nil
}

// TestSynchronizingReducesTheReport checks that a ttRPC server passes reduced messages of the report
// to the plugin, and passes other messages unchanged.
func TestSynchronizingReducesTheReport(t *testing.T) {
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(reducing(func(r *api.SynchronizeRequest) { r.Containers = r.GetContainers()[:1] })))
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{}
	api.RegisterPluginService(server, p)
	socket := filepath.Join(t.TempDir(), "plugin.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context(), listener) }()
	connection, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(connection)
	runtime := api.NewPluginClient(client)
	if _, err := runtime.Configure(t.Context(), &api.ConfigureRequest{RuntimeName: "containerd"}); err != nil || p.configured != "containerd" {
		t.Errorf("configured by %q: %v", p.configured, err)
	}
	for range 2 {
		if _, err := runtime.Synchronize(t.Context(), &api.SynchronizeRequest{Containers: []*api.Container{{Id: "a"}, {Id: "b"}, {Id: "c"}}}); err != nil {
			t.Error(err)
		}
	}
	if p.containers != 2 {
		t.Errorf("two messages contain %d containers, want 2", p.containers)
	}
	client.Close()
	server.Close()
	if err := <-served; !errors.Is(err, ttrpc.ErrServerClosed) {
		t.Error(err)
	}
}

// TestReducingKeepsErrors checks that a message that cannot be decoded remains an error.
func TestReducingKeepsErrors(t *testing.T) {
	broken := errors.New("broken")
	intercept := reducing(func(*api.SynchronizeRequest) {})
	_, err := intercept(t.Context(), func(any) error { return broken }, nil, func(_ context.Context, unmarshal func(any) error) (any, error) {
		return nil, unmarshal(&api.SynchronizeRequest{})
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
