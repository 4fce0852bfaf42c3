// SPDX-License-Identifier: Apache-2.0

// Package view serves the data of all agents, and a web page that shows the data. A user of the
// view needs no right to run commands in the agents' pods.
package view

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/transport"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

const (
	// atOnce is the number of agents that are queried concurrently.
	atOnce = 32
	// patience bounds a collection and the start of a connection, and agentPatience the answer of an
	// agent. An agent waits up to 1 s for the driver.
	patience, agentPatience = 5 * time.Second, 2 * time.Second
	// silence is the time for which the View does not query an agent that did not answer in time.
	silence = 30 * time.Second
	// mostBytes bounds the answer of an agent, as received and as encoded again.
	mostBytes = 1 << 20
	// mostCommas bounds the number of values in an answer, because an empty object of 3 bytes takes
	// 150 bytes when it is decoded.
	mostCommas = 1 << 16
	// mostHeaderBytes bounds the header of an answer, which an error may quote.
	mostHeaderBytes = 8 << 10
)

// Agents lists the agents of the cluster.
type Agents interface {
	Agents(ctx context.Context) ([]fleet.Agent, error)
}

// Options configures a View.
type Options struct {
	Agents Agents
	// Port is the port at which each agent serves its overview.
	Port string
	// TokenFile contains the token that the agents review.
	TokenFile string
	// MostBytes bounds the sum of the answers of all agents.
	MostBytes int64
	Log       *slog.Logger
}

// View queries agents.
type View struct {
	Options
	client http.Client
	now    func() time.Time
	// silent contains the agents that did not answer in time, with the time of the next query.
	silent map[fleet.Agent]time.Time
	// decoding is held while an answer is decoded, because a decoded answer takes much memory.
	decoding sync.Mutex
}

// New returns a View. Agents have self-signed certificates, so the View does not verify agents. The
// token of the View therefore has no rights that matter outside of nri-vgpu.
func New(o Options) (*View, error) {
	return newView(o, (&net.Dialer{Timeout: patience}).DialContext)
}

func newView(o Options, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*View, error) {
	// A Transport continues to connect after the request has ended, so connecting needs its own bound.
	encrypted := &http.Transport{
		DialContext: dial, TLSHandshakeTimeout: patience,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see New
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: mostHeaderBytes,
	}
	withToken, err := transport.NewBearerAuthWithRefreshRoundTripper("", o.TokenFile, encrypted)
	if err != nil {
		return nil, fmt.Errorf("read the token for agents: %w", err)
	}
	// An agent must not send the View, with its token, to another address.
	client := http.Client{Transport: withToken, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &View{Options: o, client: client, now: time.Now, silent: map[fleet.Agent]time.Time{}}, nil
}

// fleetAnswer is an agentapi.Fleet whose overviews are already encoded.
type fleetAnswer struct {
	At        time.Time            `json:"at"`
	Overviews []json.RawMessage    `json:"overviews"`
	Errors    []agentapi.NodeError `json:"errors,omitempty"`
}

// collect queries all agents, within patience. collect must not be called concurrently.
func (v *View) collect(ctx context.Context) fleetAnswer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now := v.now()
	f := fleetAnswer{At: now.UTC(), Overviews: []json.RawMessage{}}
	agents, err := v.Agents.Agents(ctx)
	if err != nil {
		f.Errors = []agentapi.NodeError{{Error: err.Error()}}
		return f
	}
	answers, errs := v.queryAll(ctx, now, agents)
	v.remember(now, agents, errs)
	for i, a := range agents {
		if errs[i] != nil {
			f.Errors = append(f.Errors, agentapi.NodeError{Node: a.Node, Error: errs[i].Error()})
			continue
		}
		f.Overviews = append(f.Overviews, answers[i])
	}
	return f
}

var (
	errSilent = fmt.Errorf("%w within %v: check whether a firewall blocks the port", agentapi.ErrAway, agentPatience)
	errLate   = fmt.Errorf("not queried: other agents took %v", patience)
)

// queryAll queries agents, and returns an answer or an error for each agent. queryAll queries agents
// last that did not answer in time before, and skips these agents for a while.
func (v *View) queryAll(ctx context.Context, now time.Time, agents []fleet.Agent) ([]json.RawMessage, []error) {
	answers, errs := make([]json.RawMessage, len(agents)), make([]error, len(agents))
	var first, last []int
	for i, a := range agents {
		next, silent := v.silent[a]
		switch {
		case !silent:
			first = append(first, i)
		case now.Before(next):
			errs[i] = errSilent
		default:
			last = append(last, i)
		}
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	var sum atomic.Int64
	for _, i := range append(first, last...) {
		group.Go(func() error {
			answers[i], errs[i] = v.query(ctx, agents[i])
			if errs[i] == nil && sum.Add(int64(len(answers[i]))) > v.MostBytes {
				answers[i], errs[i] = nil, fmt.Errorf("the answers of all agents exceed %d bytes: raise view.resources.limits.memory", v.MostBytes)
			}
			return nil
		})
	}
	_ = group.Wait()
	return answers, errs
}

// remember updates silent. A restarted agent has a new key, so that the View does not skip the
// agent.
func (v *View) remember(now time.Time, agents []fleet.Agent, errs []error) {
	silent := map[fleet.Agent]time.Time{}
	for i, a := range agents {
		next, before := v.silent[a]
		switch {
		case before && (now.Before(next) || errors.Is(errs[i], errLate)):
			silent[a] = next
		case errors.Is(errs[i], errSilent):
			silent[a] = now.Add(silence)
		}
	}
	v.silent = silent
}

// query queries an agent, within agentPatience.
func (v *View) query(ctx context.Context, a fleet.Agent) (json.RawMessage, error) {
	if why := a.Away(); why != "" {
		return nil, fmt.Errorf("%w: %s (%s)", agentapi.ErrAway, why, a.State)
	}
	own, cancel := context.WithTimeoutCause(ctx, agentPatience, errSilent)
	defer cancel()
	body, err := v.get(own, a)
	switch {
	case ctx.Err() != nil:
		return nil, errLate
	case own.Err() != nil:
		return nil, context.Cause(own)
	case err != nil:
		return nil, err
	}
	v.decoding.Lock()
	defer v.decoding.Unlock()
	if ctx.Err() != nil {
		return nil, errLate
	}
	return normalize(body, a.Node)
}

// get returns the body of an agent's answer.
func (v *View) get(ctx context.Context, a fleet.Agent) ([]byte, error) {
	where := url.URL{Scheme: "https", Host: net.JoinHostPort(a.IP, v.Port), Path: agentapi.OverviewPath}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := v.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", errors.Unwrap(err)) // without the address
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answers with status %d, want 200", answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	if len(body) > mostBytes {
		return nil, errLong
	}
	return body, nil
}

var errLong = fmt.Errorf("the agent's answer has more than %d bytes or %d values", mostBytes, mostCommas)

// normalize decodes an agent's answer and encodes the answer again, so that readers of the View get
// only valid overviews. Errors do not quote the answer.
func normalize(body []byte, node string) (json.RawMessage, error) {
	if bytes.Count(body, []byte(",")) > mostCommas {
		return nil, errLong
	}
	var o agentapi.Overview
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, errors.New("the agent's answer is not an overview: check that view and agent have the same version")
	}
	if o.Node != node {
		return nil, errors.New("the agent's answer is about another node")
	}
	attribute(&o)
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode the agent's answer: %w", err)
	}
	if len(text) > mostBytes {
		return nil, errLong
	}
	return text, nil
}

// attribute sets the node of all parts of an overview, and replaces missing lists by empty lists.
func attribute(o *agentapi.Overview) {
	o.GPUs, o.Containers, o.Processes = list(o.GPUs), list(o.Containers), list(o.Processes)
	for i := range o.GPUs {
		o.GPUs[i].Node = o.Node
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		c.Node, c.GPUs = o.Node, list(c.GPUs)
	}
	for i := range o.Processes {
		o.Processes[i].Node = o.Node
	}
}

// list returns l, or an empty list, which JSON does not encode as null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
