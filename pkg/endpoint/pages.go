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

const (
	// restShare is how long no metrics are collected after they were, as a multiple of how
	// long that took: however many clients ask, it takes a fifth of a processor.
	restShare = 4
	// mostRest bounds that, as collecting may have waited for the driver.
	mostRest = 500 * time.Millisecond
)

// pages serves metrics in Prometheus' text format. Collecting them costs a look at all
// containers of the node, so all clients that ask meanwhile share the next page. A page is in
// memory before the first byte is sent: a client that reads slowly delays no other.
type pages struct {
	metrics prometheus.Gatherer
	log     *slog.Logger

	mu   sync.Mutex
	next *page      // that is not begun yet, if anybody waits for it
	turn sync.Mutex // to collect
}

// page is what one collection found.
type page struct {
	made   chan struct{} // closed when it is
	text   []byte
	packed func() []byte // text in gzip
}

// Metrics serves metrics to however many clients ask.
func Metrics(metrics prometheus.Gatherer, log *slog.Logger) http.Handler {
	return &pages{metrics: metrics, log: log}
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := p.get(r.Context())
	if page == nil {
		return // the client has left
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Vary", "Accept-Encoding")
	body := page.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		body = page.packed()
	}
	_, _ = w.Write(body) // the client may have left
}

// get waits for a page that is begun from now on; nil if ctx ends before.
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

// fill makes a page when it is its turn, and rests.
func (p *pages) fill(next *page) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	p.next = nil
	p.mu.Unlock()
	began := time.Now()
	next.text = p.collect()
	next.packed = sync.OnceValue(func() []byte { return pack(next.text) })
	close(next.made)
	time.Sleep(min(restShare*time.Since(began), mostRest))
}

// collect returns all series. One that is wrong must not hide all others.
func (p *pages) collect() []byte {
	families, err := p.metrics.Gather()
	if err != nil {
		p.log.Error("some metrics are missing", "error", err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			p.log.Error("a metric is missing", "metric", family.GetName(), "error", err)
		}
	}
	return text.Bytes()
}

func pack(text []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // which is a level
	_, _ = w.Write(text)                                 // a buffer takes everything
	_ = w.Close()
	return packed.Bytes()
}
