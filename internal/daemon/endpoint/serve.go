// SPDX-License-Identifier: Apache-2.0

// Package endpoint serves probes, metrics and other data over HTTP. The package trusts no client.
// The package bounds connections, times and work, and can have the API server authenticate
// clients.
package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/client-go/kubernetes"
)

// patience contains the time-outs of a client.
type patience struct {
	header time.Duration // to complete the TLS handshake and send the header
	read   time.Duration // to send the whole request
	write  time.Duration // to read the answer, from the request's header on
}

// usual contains the time-outs of clients in the cluster's network, for which a scrape takes
// milliseconds.
var usual = patience{header: 5 * time.Second, read: 10 * time.Second, write: 15 * time.Second}

// mostHeaderBytes exceeds the headers of Prometheus and the kubelet.
const mostHeaderBytes = 8 << 10

// Options configures the endpoints of a program.
type Options struct {
	// Address is the address of metrics and probes, "" for no address.
	Address string
	// ProbeAddress is an address of the probes alone, for the kubelet, "" for no address.
	ProbeAddress string
	// Probes handles /healthz and /readyz.
	Probes  http.Handler
	Metrics prometheus.Gatherer
	// Reviews is the client that authenticates and authorizes readers of Address. If Reviews is
	// nil, every reader is allowed.
	Reviews kubernetes.Interface
	// Socket is the path of a socket that serves metrics and probes to root on the node, without a
	// review; "" for no socket. Run serves the socket only if Reviews is set.
	Socket string
	// CertificateDir contains tls.crt and tls.key, which Reviews requires. If CertificateDir is "",
	// Run creates a self-signed certificate at the start.
	CertificateDir string
	Log            *slog.Logger
}

// Run serves both addresses until ctx ends.
func Run(ctx context.Context, o Options) error {
	mux := http.NewServeMux()
	mux.Handle("/", o.Probes)
	mux.Handle("GET /metrics", Metrics(o.Metrics, o.Log))
	all := server{handler: mux, log: o.Log}
	open := all
	if o.Reviews != nil {
		var err error
		if open, err = protect(all, Access{Reviews: o.Reviews}, o.CertificateDir); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return listen(ctx, o.Address, open) })
	group.Go(func() error { return listen(ctx, o.ProbeAddress, server{handler: o.Probes, log: o.Log}) })
	if o.Reviews != nil {
		group.Go(func() error { return listenRoot(ctx, o.Socket, all) })
	}
	return group.Wait()
}

// ServeAuthorized serves an address until ctx ends, over TLS, to clients with access.
// Options describes certificateDir.
func ServeAuthorized(ctx context.Context, address string, handler http.Handler, access Access, certificateDir string, log *slog.Logger) error {
	s, err := protect(server{handler: handler, log: log}, access, certificateDir)
	if err != nil {
		return err
	}
	return listen(ctx, address, s)
}

// server is the server of an address.
type server struct {
	handler  http.Handler
	security *tls.Config // nil means clear text
	log      *slog.Logger
}

// protect adds authentication and TLS to a server. Without TLS, other hosts on the network could read
// and use a token.
func protect(s server, access Access, certificateDir string) (server, error) {
	certificate, err := newCertificate(certificateDir, s.log)
	if err != nil {
		return s, err
	}
	s.handler = newReviewer(access, s.log).require(s.handler)
	s.security = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get}
	return s, nil
}

func listen(ctx context.Context, address string, of server) error {
	if address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return serve(ctx, newFair(listener, mostConnections), of, usual)
}

// listenRoot serves a socket that only root can open.
func listenRoot(ctx context.Context, path string, of server) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("serve metrics to root: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("serve metrics to root: %w", errors.Join(err, listener.Close()))
	}
	return serve(ctx, newFair(listener, mostConnections), of, usual)
}

func serve(ctx context.Context, listener net.Listener, of server, p patience) error {
	server := &http.Server{
		Handler:           of.handler,
		ReadHeaderTimeout: p.header,
		ReadTimeout:       p.read,
		WriteTimeout:      p.write,
		MaxHeaderBytes:    mostHeaderBytes,
		TLSConfig:         of.security,
		Protocols:         new(http.Protocols),
		ErrorLog:          log.New(&rarely{log: of.log, now: rate.Sometimes{Interval: time.Minute}}, "", 0),
	}
	// A connection of HTTP/1 without keep-alive has one request, so the bounds on connections and on
	// their rate bound requests.
	server.Protocols.SetHTTP1(true)
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	run := server.Serve
	if of.security != nil {
		run = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := run(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// rarely logs errors that clients cause, such as failed handshakes, at most once a minute.
type rarely struct {
	log *slog.Logger
	now rate.Sometimes
}

func (r *rarely) Write(line []byte) (int, error) {
	r.now.Do(func() { r.log.Warn("failed to serve a client", "error", strings.TrimSpace(string(line))) })
	return len(line), nil
}
