// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// serveControl answers requests about the components on a socket that only root can reach.
func serveControl(socket string, m *manager) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make the control socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	go func() { log.Printf("error: control socket: %v", http.Serve(listener, controlHandler(m))) }()
	return nil
}

func controlHandler(m *manager) http.Handler {
	actions := map[string]func(name string, r *http.Request) error{
		"start":   func(name string, _ *http.Request) error { return m.start(name) },
		"stop":    func(name string, _ *http.Request) error { return m.stop(name) },
		"restart": func(name string, _ *http.Request) error { return errors.Join(m.stop(name), m.start(name)) },
		"signal": func(name string, r *http.Request) error {
			n, err := strconv.Atoi(r.FormValue("number"))
			if err != nil {
				return fmt.Errorf("signal %q: %w", r.FormValue("number"), err)
			}
			return m.signal(name, syscall.Signal(n))
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /components", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(m.statuses())
	})
	mux.HandleFunc("POST /components/{name}/{action}", func(w http.ResponseWriter, r *http.Request) {
		action := actions[r.PathValue("action")]
		if action == nil {
			http.NotFound(w, r)
			return
		}
		if err := action(r.PathValue("name"), r); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	return mux
}

// A Client talks to a node's supervisor.
type Client struct{ http http.Client }

// NewClient returns a client of the node with the given state directory. The node need not run.
func NewClient(stateDir string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(stateDir, controlFile))
	}
	return &Client{http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Components returns the components.
func (c *Client) Components(ctx context.Context) ([]Status, error) {
	body, err := c.do(ctx, http.MethodGet, "/components")
	if err != nil {
		return nil, err
	}
	var all []Status
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("ask the node's supervisor: %w", err)
	}
	return all, nil
}

// Start starts a component that does not run.
func (c *Client) Start(ctx context.Context, name string) error { return c.act(ctx, name, "start") }

// Stop ends a component and returns when it has ended.
func (c *Client) Stop(ctx context.Context, name string) error { return c.act(ctx, name, "stop") }

// Restart stops and starts a component, and does not wait until it serves.
func (c *Client) Restart(ctx context.Context, name string) error { return c.act(ctx, name, "restart") }

// Signal sends a signal to a component.
func (c *Client) Signal(ctx context.Context, name string, sig syscall.Signal) error {
	return c.act(ctx, name, "signal?number="+strconv.Itoa(int(sig)))
}

func (c *Client) act(ctx context.Context, name, action string) error {
	_, err := c.do(ctx, http.MethodPost, "/components/"+url.PathEscape(name)+"/"+action)
	return err
}

func (c *Client) do(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://node"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the node's supervisor: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the node's supervisor: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("ask the node's supervisor: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}
