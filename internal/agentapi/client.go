// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// patience is the time for which Ask waits for an answer.
const patience = 5 * time.Second

// retryPause is the pause between two attempts to reach a busy agent.
const retryPause = 50 * time.Millisecond

// ErrAway reports that no agent answers.
var ErrAway = errors.New("the agent does not answer")

// errBusy reports that the agent accepted the question and closed the connection.
var errBusy = fmt.Errorf("%w: the agent is busy, or older than this program", ErrAway)

// Client asks the agent at a socket.
type Client struct{ Socket string }

// Ask asks a question and decodes the answer into `into`. Ask retries for some seconds while the
// agent is busy.
func (c Client) Ask(ctx context.Context, question Question, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		content, err := c.ask(ctx, question)
		if err == nil {
			if err := json.Unmarshal(content, into); err != nil {
				return fmt.Errorf("read the agent's answer: %w", err)
			}
			return nil
		}
		if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, errBusy) {
			return c.explain(err)
		}
		if !loop.Sleep(ctx, retryPause) {
			return c.explain(err)
		}
	}
}

// explain adds advice for the user to an error.
func (c Client) explain(err error) error {
	const look = "check whether the pod of the DaemonSet nri-vgpu runs on this node"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s does not exist: %s; outside of containers with GPUs, run this program as root on the node", ErrAway, c.Socket, look)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: on the node, run this program as root", c.Socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: no process listens at %s: %s", ErrAway, c.Socket, look)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w within %v: %s", ErrAway, patience, look)
	default:
		return err
	}
}

func (c Client) ask(ctx context.Context, question Question) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", c.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if _, err := conn.Write(question.message()); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	return read(conn)
}

func read(conn net.Conn) ([]byte, error) {
	var got answer
	raw := make([]byte, maxPacket+1)
	for !got.complete {
		n, err := conn.Read(raw)
		switch {
		case n > 0:
			if err := got.add(raw[:n]); err != nil {
				return nil, err
			}
		case len(got.content) == 0 && !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errBusy // the connection was closed
		case err != nil:
			return nil, fmt.Errorf("%w completely: %w", ErrAway, err)
		}
	}
	return got.content, nil
}
