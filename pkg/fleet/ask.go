package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nri-vgpu/nri-vgpu/pkg/doctor"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
)

const (
	// atOnce is how many nodes are asked at a time.
	atOnce = 32
	// patience is how long one is waited for.
	patience = 15 * time.Second
	// pace is between an answer and the next question.
	pace = time.Second
	// again is when one that did not answer is asked again.
	again = 2 * time.Second
	// maxStderr is what is kept of what a command complains.
	maxStderr = 4 << 10
)

// run runs a command in an agent's pod.
func (f *Fleet) run(ctx context.Context, a Agent, in io.Reader, out io.Writer, command ...string) error {
	if a.Down != "" {
		return fmt.Errorf("%w on %s: %s (%s)", query.ErrAway, a.Node, a.Down, a.State)
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
	if err := either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: complaint}); err != nil {
		return explain(a, complaint.String(), err)
	}
	return nil
}

// explain says why an agent was not asked.
func explain(a Agent, complaint string, err error) error {
	var status exec.CodeExitError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w on %s within %v", query.ErrAway, a.Node, patience)
	case errors.As(err, &status) && strings.Contains(complaint, "unknown command"):
		return fmt.Errorf("the agent on %s is of an older version, which does not know this question: upgrade it", a.Node)
	case complaint != "":
		return fmt.Errorf("the agent on %s: %s: %w", a.Node, complaint, err)
	default:
		return fmt.Errorf("ask the agent on %s: %w", a.Node, err)
	}
}

// tail keeps the end of what is written.
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

// Overviews asks all agents. The error is about those that did not answer.
func (f *Fleet) Overviews(ctx context.Context) ([]query.Overview, error) {
	agents, err := f.Agents(ctx)
	if err != nil {
		return nil, err
	}
	return f.OverviewsOf(ctx, agents)
}

// OverviewsOf asks some.
func (f *Fleet) OverviewsOf(ctx context.Context, agents []Agent) ([]query.Overview, error) {
	answers, errs := make([]*query.Overview, len(agents)), make([]error, len(agents))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, a := range agents {
		group.Go(func() error {
			answers[i], errs[i] = f.overview(ctx, a)
			return nil
		})
	}
	_ = group.Wait()
	var all []query.Overview
	for _, o := range answers {
		if o != nil {
			all = append(all, *o)
		}
	}
	return all, errors.Join(errs...)
}

func (f *Fleet) overview(ctx context.Context, a Agent) (*query.Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out bytes.Buffer
	if err := f.run(ctx, a, nil, &out, "vgpuctl", "get", "all", "-o", "json"); err != nil {
		return nil, err
	}
	var o query.Overview
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return nil, fmt.Errorf("read what the agent on %s says: %w", a.Node, err)
	}
	return &o, nil
}

// Follow has each agent tell once a second, over one connection each.
func (f *Fleet) Follow(ctx context.Context, tell func(node string, o query.Overview, err error)) {
	followed := map[Agent]context.CancelFunc{} // an agent that goes down, or comes up, is another

	var all sync.WaitGroup
	defer all.Wait()
	for {
		agents, err := f.Agents(ctx)
		if err != nil && ctx.Err() == nil {
			tell("", query.Overview{}, err)
		}
		there := map[Agent]bool{}
		for _, a := range agents {
			there[a] = true
			if followed[a] != nil {
				continue
			}
			own, cancel := context.WithCancel(ctx)
			followed[a] = cancel
			all.Go(func() { f.follow(own, a, tell) })
		}
		for a, cancel := range followed {
			if !there[a] && err == nil {
				cancel()
				delete(followed, a)
			}
		}
		if !sleep(ctx, 5*again) {
			for _, cancel := range followed {
				cancel()
			}
			return
		}
	}
}

func (f *Fleet) follow(ctx context.Context, a Agent, tell func(string, query.Overview, error)) {
	for ctx.Err() == nil {
		err := f.converse(ctx, func(o query.Overview) { tell(a.Node, o, nil) }, a)
		if ctx.Err() != nil {
			return
		}
		tell(a.Node, query.Overview{}, err)
		sleep(ctx, again)
	}
}

// converse asks an agent once a second, by a line each, until something fails.
func (f *Fleet) converse(ctx context.Context, tell func(query.Overview), a Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	questions, ask := io.Pipe()
	answers, answer := io.Pipe()
	go func() {
		err := f.run(ctx, a, questions, answer, "vgpuctl", "get", "all", "-o", "json", "--each-line")
		if err == nil {
			err = fmt.Errorf("%w on %s any more", query.ErrAway, a.Node)
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
		var o query.Overview
		if err := read.Decode(&o); err != nil {
			return err
		}
		tell(o)
		if !sleep(ctx, pace) {
			return ctx.Err()
		}
	}
}

// Examine has the doctor look at a node from its agent's pod.
func (f *Fleet) Examine(ctx context.Context, a Agent) ([]doctor.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var out bytes.Buffer
	err := f.run(ctx, a, nil, &out, "vgpuctl", "doctor", "-o", "json", "--root", "/host", "--config", "/etc/nri-vgpu/config.toml")
	// Its exit status tells that it found something; what, its output.
	var findings []doctor.Finding
	if json.Unmarshal(out.Bytes(), &findings) == nil && len(findings) > 0 {
		return findings, nil
	}
	if err == nil {
		err = fmt.Errorf("the doctor on %s says nothing that can be read: %q", a.Node, out.String())
	}
	return nil, err
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
