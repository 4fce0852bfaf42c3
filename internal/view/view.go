// SPDX-License-Identifier: Apache-2.0

// Package view serves the data of all agents, and a web page that shows the data. A user of the
// view needs no right to run commands in the agents' pods.
package view

import (
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
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/transport"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

const (
	// atOnce is the number of agents that are queried concurrently.
	atOnce = 64
	// patience bounds the answer of an agent. An agent waits up to 5 s for the driver.
	patience = 8 * time.Second
	// mostBytes bounds the answer of an agent.
	mostBytes = 64 << 20
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
	Log       *slog.Logger
}

// View queries agents.
type View struct {
	Options
	client http.Client
}

// New returns a View. Agents have self-signed certificates, so the View does not verify agents. The
// token of the View therefore has no rights that matter outside of nri-vgpu.
func New(o Options) (*View, error) {
	encrypted := &http.Transport{
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see New
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
	}
	withToken, err := transport.NewBearerAuthWithRefreshRoundTripper("", o.TokenFile, encrypted)
	if err != nil {
		return nil, fmt.Errorf("read the token for agents: %w", err)
	}
	return &View{Options: o, client: http.Client{Transport: withToken, Timeout: patience}}, nil
}

// Fleet queries all agents.
func (v *View) Fleet(ctx context.Context) agentapi.Fleet {
	f := agentapi.Fleet{At: time.Now().UTC(), Overviews: []agentapi.Overview{}}
	agents, err := v.Agents.Agents(ctx)
	if err != nil {
		f.Errors = []agentapi.NodeError{{Error: err.Error()}}
		return f
	}
	answers, errs := make([]*agentapi.Overview, len(agents)), make([]error, len(agents))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, a := range agents {
		group.Go(func() error {
			answers[i], errs[i] = v.overview(ctx, a)
			return nil
		})
	}
	_ = group.Wait()
	for i, a := range agents {
		if errs[i] != nil {
			f.Errors = append(f.Errors, agentapi.NodeError{Node: a.Node, Error: errs[i].Error()})
			continue
		}
		f.Overviews = append(f.Overviews, *answers[i])
	}
	return f
}

// overview queries an agent.
func (v *View) overview(ctx context.Context, a fleet.Agent) (*agentapi.Overview, error) {
	if a.Down != "" {
		return nil, fmt.Errorf("%w: %s (%s)", agentapi.ErrAway, a.Down, a.State)
	}
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
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	case len(body) > mostBytes:
		return nil, fmt.Errorf("read the agent's answer: more than %d bytes", mostBytes)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the agent refused with %s: %.200s", answer.Status, body)
	}
	var o agentapi.Overview
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return &o, nil
}
