// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

func viewCommand(c *cluster) *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Serve the cluster's GPUs as a web page on this computer",
		Long: `Serve the web page of nri-vgpu-view at an address of this computer, until interrupted.
The API server forwards each request with the user's rights, so no port of the cluster
has to be open. Every user of this computer can read the page.

The command needs view.enabled=true in the chart, and the rights of the Role
nri-vgpu-viewer.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.connected(cmd, func(ctx context.Context, f *fleet.Fleet, _ string) error {
				return serveView(ctx, f, port, cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "port of 127.0.0.1; 0 selects a free port")
	_ = cmd.RegisterFlagCompletionFunc("port", noFiles)
	return cmd
}

// serveView forwards requests to nri-vgpu-view until ctx ends.
func serveView(ctx context.Context, f *fleet.Fleet, port uint16, out io.Writer) error {
	if _, err := f.ViewToken(ctx); err != nil {
		return err
	}
	target, transport, err := f.ViewURL()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("serve the page (choose another --port): %w", err)
	}
	server := &http.Server{Handler: forward(target, transport, f.ViewToken, listener.Addr().String()), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	fmt.Fprintf(out, "http://%s%s\nPress Ctrl-C to end.\n", listener.Addr(), agentapi.ViewPath)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// clean reports whether a path contains no "." or ".." and no empty element.
func clean(name string) bool {
	cleaned := path.Clean(name)
	return name == cleaned || name == cleaned+"/"
}

// forward returns a handler that forwards requests for the page, with a token, to target. The
// handler rejects other names of this computer, because a web site could let its name point to it.
// The handler rejects unclean paths, because a path with ".." could leave the view.
func forward(target *url.URL, transport http.RoundTripper, token func(context.Context) (string, error), address string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Cookie")
		},
	}
	_, port, _ := net.SplitHostPort(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host != address && r.Host != "localhost:"+port:
			http.Error(w, "use the address that kubectl vgpu view printed", http.StatusForbidden)
		case r.URL.Path == "/":
			http.Redirect(w, r, agentapi.ViewPath, http.StatusFound)
		case r.Method != http.MethodGet || r.URL.RawPath != "" || !strings.HasPrefix(r.URL.Path, agentapi.ViewPath) || !clean(r.URL.Path):
			http.NotFound(w, r)
		default:
			t, err := token(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			r.Header.Set(agentapi.TokenHeader, t)
			proxy.ServeHTTP(w, r)
		}
	})
}
