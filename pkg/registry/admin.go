package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

// Admin is the socket of the node's root, who may know all. It lies where no
// container reaches it, and whoever opens it has root's rights over the file:
// nothing else is asked.
type Admin struct {
	Path    string
	Answers Answers
	Log     *slog.Logger

	said string
}

// Run serves until ctx ends.
func (a *Admin) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.session(ctx); err != nil && ctx.Err() == nil && err.Error() != a.said {
			a.said = err.Error()
			a.Log.Error("the node's root cannot ask who uses the GPUs", "error", err)
		}
		pause(ctx, sweepInterval)
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
			return fmt.Errorf("accept a question: %w", err)
		}
		all.Go(func() {
			defer conn.Close()
			a.answer(ctx, conn)
		})
	}
}

func (a *Admin) answer(ctx context.Context, conn *net.UnixConn) {
	raw, came := hear(conn)
	if !came {
		return
	}
	question, err := query.ParseQuestion(raw)
	if err != nil {
		send(conn, query.Refuse(err))
		return
	}
	reply(ctx, conn, a.Answers, Asker{Node: true}, question)
}

// listen makes a socket, in place of the one that an earlier agent left.
func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := clearPath(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	// Another agent's socket may stand there when this one is closed.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, mode); err != nil {
		listener.Close()
		return nil, fmt.Errorf("set the rights of the agent's socket: %w", err)
	}
	return listener, nil
}
