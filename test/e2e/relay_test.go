// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// relaySocket is the path, on the node, at which the agent finds the runtime in the tests that
// break their connection.
const relaySocket = "/var/run/nri/relay.sock"

// relay forwards messages between the agent and containerd. relay lets a test act at the moment
// when the runtime sends the agent a request.
type relay struct {
	listener net.Listener
	runtime  string

	mu      sync.Mutex
	request string // the NRI request to act on, or ""
	mention string // a text that the request must also contain
	act     func(plugin, runtime net.Conn)
	conns   []net.Conn
}

// newRelay starts a relay and makes the agent use it until the test ends.
func newRelay(t *testing.T) *relay {
	t.Helper()
	dir := filepath.Join(bed.Cluster.Root(), "run/nri")
	path := filepath.Join(dir, filepath.Base(relaySocket))
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, runtime: filepath.Join(dir, "nri.sock")}
	t.Cleanup(func() { listener.Close() })
	go r.serve()
	configure(t, "[nri]\nsocket_path = \""+relaySocket+"\"\n")
	return r
}

func (r *relay) serve() {
	for {
		plugin, err := r.listener.Accept()
		if err != nil {
			return
		}
		runtime, err := net.Dial("unix", r.runtime)
		if err != nil {
			plugin.Close()
			continue
		}
		r.mu.Lock()
		r.conns = []net.Conn{plugin, runtime}
		r.mu.Unlock()
		go r.pass(plugin, runtime, true)
		go r.pass(runtime, plugin, false)
	}
}

// pass forwards the messages of one end to the other.
func (r *relay) pass(to, from net.Conn, fromRuntime bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if fromRuntime {
				r.look(buffer[:n], to, from)
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return // one side has ended, or the test has cut the connection
		}
	}
}

// look runs the action once, if message is the message for which the test waits. The runtime's
// messages contain the names of requests and pods in clear text.
func (r *relay) look(message []byte, plugin, runtime net.Conn) {
	r.mu.Lock()
	act := r.act
	if act == nil || !bytes.Contains(message, []byte(r.request)) || !bytes.Contains(message, []byte(r.mention)) {
		act = nil
	} else {
		r.act = nil
	}
	r.mu.Unlock()
	if act != nil {
		act(plugin, runtime)
	}
}

// on runs an action at the next request of this name that contains a text. The returned function
// reports whether the action has run.
func (r *relay) on(request, mention string, act func(plugin, runtime net.Conn)) (acted func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done := make(chan struct{})
	r.request, r.mention = request, mention
	r.act = func(plugin, runtime net.Conn) {
		act(plugin, runtime)
		close(done)
	}
	return func() bool {
		select {
		case <-done:
			return true
		case <-time.After(patience):
			return false
		}
	}
}

// cut breaks the present connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		conn.Close()
	}
}

// cut breaks a connection.
func cut(plugin, runtime net.Conn) {
	plugin.Close()
	runtime.Close()
}
