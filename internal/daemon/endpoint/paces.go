// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// mostClients bounds the number of clients whose rates paces remembers.
const mostClients = 1024

// paces limits the rate of each client separately.
type paces struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex
	known *cache.LRUExpireCache // a *rate.Limiter for each client
}

func newPaces(perSecond rate.Limit, burst int) *paces {
	return &paces{perSecond: perSecond, burst: burst, known: cache.NewLRUExpireCache(mostClients)}
}

// of returns the limiter of a client. A forgotten client gets a new limiter.
func (p *paces) of(client netip.Addr) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.known.Get(client); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(p.perSecond, p.burst)
	p.known.Add(client, limiter, time.Hour)
	return limiter
}
