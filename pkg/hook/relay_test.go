// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay forwards the connections between plugin and runtime. relay closes the connections as if
// plugin or runtime had died, because a stopped adaptation leaves them open.
type relay struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t testing.TB, path, target string) *relay {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, target: target}
	t.Cleanup(func() {
		listener.Close()
		r.cut()
	})
	go r.serve()
	return r
}

func (r *relay) serve() {
	for {
		plugin, err := r.listener.Accept()
		if err != nil {
			return
		}
		runtime, err := net.Dial("unix", r.target)
		if err != nil {
			plugin.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, plugin, runtime)
		r.mu.Unlock()
		go pipe(plugin, runtime)
		go pipe(runtime, plugin)
	}
}

func pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}
