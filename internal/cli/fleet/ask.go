// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

const (
	// atOnce is the number of nodes that are queried concurrently.
	atOnce = 32
	// patience is the time-out of a query to an agent.
	patience = 15 * time.Second
	// pace is the pause between an answer and the next query.
	pace = time.Second
	// again is the pause before the next query of an agent that did not answer.
	again = 2 * time.Second
	// maxStderr is the number of bytes of a command's error output that tail keeps.
	maxStderr = 4 << 10
)

// run runs a command in an agent's pod.
func (f *Fleet) run(ctx context.Context, a Agent, in io.Reader, out io.Writer, command ...string) error {
	if a.Down != "" {
		return fmt.Errorf("%w on %s: %s (%s)", agentapi.ErrAway, a.Node, a.Down, a.State)
	}
	url := f.api.Post().Namespace(f.Namespace).Resource("pods").Name(a.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: in != nil, Stdout: true, Stderr: true}, parameterCodec).URL()
	socket, err := remotecommand.NewWebSocketExecutor(f.config, "GET", url.String())
	if err != nil {
		return fmt.Errorf("ask the agent on %s: %w", a.Node, err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(f.config, "POST", url)
	if err != nil {
		return fmt.Errorf("ask the agent on %s: %w", a.Node, err)
	}
	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("ask the agent on %s: %w", a.Node, err)
	}
	complaint := &tail{}
	ctx = klog.NewContext(ctx, klog.Logger{}) // client-go also logs errors of streams that the caller ends
	if err := either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: complaint}); err != nil {
		return explain(a, complaint.String(), err)
	}
	return nil
}

// explain returns the reason that a query to an agent failed.
func explain(a Agent, complaint string, err error) error {
	var status exec.CodeExitError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w on %s within %v", agentapi.ErrAway, a.Node, patience)
	case errors.As(err, &status) && strings.Contains(complaint, "unknown command"):
		return fmt.Errorf("the agent on %s has an older version, which does not know this query: upgrade the agent", a.Node)
	case complaint != "":
		return fmt.Errorf("the agent on %s: %s: %w", a.Node, complaint, err)
	default:
		return fmt.Errorf("ask the agent on %s: %w", a.Node, err)
	}
}

// tail keeps the last maxStderr bytes that are written.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-maxStderr):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}

// Overviews queries all agents. The error covers the agents that did not answer. If the user may not
// run commands in the agents' pods, Overviews queries nri-vgpu-view.
func (f *Fleet) Overviews(ctx context.Context) ([]agentapi.Overview, error) {
	if !f.mayExec(ctx) {
		return f.view(ctx)
	}
	agents, err := f.Agents(ctx)
	if err != nil {
		return nil, err
	}
	return f.OverviewsOf(ctx, agents)
}

// OverviewsOf queries the given agents, as Overviews does. The error lists the agents that did not
// answer.
func (f *Fleet) OverviewsOf(ctx context.Context, agents []Agent) ([]agentapi.Overview, error) {
	if !f.mayExec(ctx) {
		all, err := f.view(ctx)
		return slices.DeleteFunc(all, func(o agentapi.Overview) bool {
			return !slices.ContainsFunc(agents, func(a Agent) bool { return a.Node == o.Node })
		}), err
	}
	answers, errs := make([]*agentapi.Overview, len(agents)), make([]error, len(agents))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, a := range agents {
		group.Go(func() error {
			answers[i], errs[i] = f.overview(ctx, a)
			return nil
		})
	}
	_ = group.Wait()
	var all []agentapi.Overview
	for _, o := range answers {
		if o != nil {
			all = append(all, *o)
		}
	}
	return all, errors.Join(errs...)
}

func (f *Fleet) overview(ctx context.Context, a Agent) (*agentapi.Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out bytes.Buffer
	if err := f.run(ctx, a, nil, &out, "vgpuctl", "get", "all", "-o", "json"); err != nil {
		return nil, err
	}
	var o agentapi.Overview
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return nil, fmt.Errorf("read the answer of the agent on %s: %w", a.Node, err)
	}
	return &o, nil
}

// Follow calls report with the answer of each agent once a second. Follow uses one connection to each
// agent, or nri-vgpu-view if the user may not run commands in the agents' pods.
func (f *Fleet) Follow(ctx context.Context, report func(node string, o agentapi.Overview, err error)) {
	if !f.mayExec(ctx) {
		f.followView(ctx, report)
		return
	}
	followed := map[Agent]context.CancelFunc{} // a restarted Agent is a new key

	var all sync.WaitGroup
	defer all.Wait()
	for {
		agents, err := f.Agents(ctx)
		if err != nil && ctx.Err() == nil {
			report("", agentapi.Overview{}, err)
		}
		there := map[Agent]bool{}
		for _, a := range agents {
			there[a] = true
			if followed[a] != nil {
				continue
			}
			own, cancel := context.WithCancel(ctx)
			followed[a] = cancel
			all.Go(func() { f.follow(own, a, report) })
		}
		for a, cancel := range followed {
			if !there[a] && err == nil {
				cancel()
				delete(followed, a)
			}
		}
		if !loop.Sleep(ctx, 5*again) {
			for _, cancel := range followed {
				cancel()
			}
			return
		}
	}
}

func (f *Fleet) follow(ctx context.Context, a Agent, report func(string, agentapi.Overview, error)) {
	for ctx.Err() == nil {
		err := f.converse(ctx, func(o agentapi.Overview) { report(a.Node, o, nil) }, a)
		if ctx.Err() != nil {
			return
		}
		report(a.Node, agentapi.Overview{}, err)
		loop.Sleep(ctx, again)
	}
}

// converse queries an agent once a second until an error occurs. Each question
// and answer is a line.
func (f *Fleet) converse(ctx context.Context, report func(agentapi.Overview), a Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	questions, ask := io.Pipe()
	answers, answer := io.Pipe()
	go func() {
		err := f.run(ctx, a, questions, answer, "vgpuctl", "get", "all", "-o", "json", "--each-line")
		if err == nil {
			err = fmt.Errorf("%w on %s", agentapi.ErrAway, a.Node)
		}
		answer.CloseWithError(err)
		questions.CloseWithError(err)
	}()
	defer ask.Close()
	defer answers.Close()
	for read := json.NewDecoder(answers); ; {
		if _, err := io.WriteString(ask, "\n"); err != nil {
			return err
		}
		var o agentapi.Overview
		if err := read.Decode(&o); err != nil {
			return err
		}
		report(o)
		if !loop.Sleep(ctx, pace) {
			return ctx.Err()
		}
	}
}

// Examine runs doctor for a node in its agent's pod.
func (f *Fleet) Examine(ctx context.Context, a Agent) ([]finding.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var out bytes.Buffer
	err := f.run(ctx, a, nil, &out, "vgpuctl", "doctor", "-o", "json", "--root", "/host", "--config", "/etc/nri-vgpu/config.toml")
	// The command exits with an error if it has found a problem. The findings are in the output.
	var findings []finding.Finding
	if json.Unmarshal(out.Bytes(), &findings) == nil && len(findings) > 0 {
		return findings, nil
	}
	if err == nil {
		err = fmt.Errorf("the doctor on %s printed no findings: %q", a.Node, out.String())
	}
	return nil, err
}
