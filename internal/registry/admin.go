// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// Admin is the socket at which the node's root may ask any question. No container reaches the
// socket's directory, and only root may open the socket's file. The server relies on these
// permissions and checks no other permissions.
type Admin struct {
	Path    string
	Answers Answers
	Log     *slog.Logger

	failure loop.Failure
}

// Run serves until ctx ends.
func (a *Admin) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.session(ctx); err != nil && ctx.Err() == nil && a.failure.Note(err) == loop.Failed {
			a.Log.Error("failed to open the administrators' socket; vgpuctl cannot list the GPUs' users", "error", err)
		}
		loop.Sleep(ctx, sweepInterval)
	}
}

func (a *Admin) session(ctx context.Context) error {
	listener, err := listen(a.Path, 0o600)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() {
		untilLost(ctx, a.Path, func() {})
		listener.Close()
	})
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a query: %w", err)
		}
		all.Go(func() {
			defer conn.Close()
			a.answer(ctx, conn)
		})
	}
}

func (a *Admin) answer(ctx context.Context, conn *net.UnixConn) {
	raw, came := awaitMessage(conn)
	if !came {
		return
	}
	question, err := agentapi.ParseQuestion(raw)
	if err != nil {
		send(conn, agentapi.Refuse(err))
		return
	}
	reply(ctx, conn, a.Answers, Asker{Node: true}, question)
}

// listen creates a socket, and removes an earlier agent's socket at the same path.
func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := clearPath(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	// Another agent's socket may have replaced this socket by the time of Close.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, mode); err != nil {
		listener.Close()
		return nil, fmt.Errorf("set the rights of the agent's socket: %w", err)
	}
	return listener, nil
}
