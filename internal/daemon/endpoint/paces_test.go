// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"testing"
	"time"
)

// TestConnectionsOfAClientArePaced checks that a client reaches the HTTP server only at the documented
// rate. Other clients reach the server at once.
func TestConnectionsOfAClientArePaced(t *testing.T) {
	paces, now := newFair(nil, mostConnections).paces, time.Now()
	hostile := netip.MustParseAddr("10.0.0.1")
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, connectionsAtOnce}, {0, 0}, {time.Second / 10, connectionsPerSecond / 10}, {time.Hour, connectionsAtOnce}} {
		now = now.Add(step.after)
		got := 0
		for range 10000 {
			if paces.of(hostile).AllowN(now, 1) {
				got++
			}
		}
		if got != step.want {
			t.Errorf("%v later, %d connections of 10,000 reach the server, want %d", step.after, got, step.want)
		}
		if !paces.of(netip.MustParseAddr("10.0.0.2")).AllowN(now, 1) {
			t.Errorf("%v later, another client's connection does not reach the server", step.after)
		}
	}
}

// TestClientsAreBounded checks that any number of clients takes bounded memory, and that paces forgets
// the clients that were seen least recently.
func TestClientsAreBounded(t *testing.T) {
	paces, kept := newPaces(1, 1), netip.MustParseAddr("10.0.0.1")
	paces.of(kept).Allow()
	for i := range 3 * mostClients {
		paces.of(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		paces.of(kept)
	}
	if got := len(paces.known.Keys()); got != mostClients {
		t.Errorf("paces remembers %d clients, want %d", got, mostClients)
	}
	if paces.of(kept).Allow() {
		t.Error("paces has dropped the client that was seen last")
	}
}
