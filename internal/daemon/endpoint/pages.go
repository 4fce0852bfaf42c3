// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"compress/gzip"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// pause follows a collection. With any number of clients, the package collects at most twice
// a second.
const pause = 500 * time.Millisecond

// pages serves the results of collections. A collection examines all containers of the node, so
// concurrent clients share the next page. A page is complete in memory before its first byte is
// sent, so a slow reader delays no other client.
type pages struct {
	contentType string
	collect     func() []byte
	shared      bool // a client may get the page of a collection that has begun

	mu   sync.Mutex
	next *page         // for the next client; nil if no client waits
	turn chan struct{} // full while collecting, and in the pause
}

// page is the result of one collection.
type page struct {
	made   chan struct{} // closed when the page is complete
	text   []byte
	packed func() []byte // returns text, compressed with gzip
}

// Pages returns a handler that serves the results of collect to any number of clients. Pages never
// calls collect concurrently.
func Pages(contentType string, collect func() []byte) http.Handler {
	return &pages{contentType: contentType, collect: collect, turn: make(chan struct{}, 1)}
}

// SharedPages returns a handler as Pages does. If a collection runs, a client gets its results, which
// are older than the request by at most the duration of a collection.
func SharedPages(contentType string, collect func() []byte) http.Handler {
	return &pages{contentType: contentType, collect: collect, shared: true, turn: make(chan struct{}, 1)}
}

// Metrics returns a handler that serves metrics in Prometheus' text format to any number of
// clients.
func Metrics(metrics prometheus.Gatherer, log *slog.Logger) http.Handler {
	return Pages(string(expfmt.NewFormat(expfmt.TypeTextPlain)), func() []byte { return gather(metrics, log) })
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := p.get(r.Context())
	if page == nil {
		return // the client has disconnected
	}
	w.Header().Set("Content-Type", p.contentType)
	w.Header().Set("Vary", "Accept-Encoding")
	body := page.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		body = page.packed()
	}
	_, _ = w.Write(body) // the client may have disconnected
}

// get waits for a page whose collection starts after the call, or ends after the call if the page is
// shared. get returns nil if ctx ends first.
func (p *pages) get(ctx context.Context) *page {
	p.mu.Lock()
	next := p.next
	if next == nil {
		next = &page{made: make(chan struct{})}
		p.next = next
		go p.fill(next)
	}
	p.mu.Unlock()
	select {
	case <-next.made:
		return next
	case <-ctx.Done():
		return nil
	}
}

// fill collects a page when no other collection runs, and then pauses.
func (p *pages) fill(next *page) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	if !p.shared {
		p.close()
	}
	next.text = p.collect()
	if p.shared {
		p.close()
	}
	next.packed = sync.OnceValue(func() []byte { return pack(next.text) })
	close(next.made)
	time.Sleep(pause)
}

// close makes get begin another page for further clients.
func (p *pages) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = nil
}

// gather returns all series. An invalid series must not hide other series.
func gather(metrics prometheus.Gatherer, log *slog.Logger) []byte {
	families, err := metrics.Gather()
	if err != nil {
		log.Error("failed to collect some metrics", "error", err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			log.Error("failed to collect a metric", "metric", family.GetName(), "error", err)
		}
	}
	return text.Bytes()
}

func pack(text []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid
	_, _ = w.Write(text)                                 // a buffer accepts all writes
	_ = w.Close()
	return packed.Bytes()
}
