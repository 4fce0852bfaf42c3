// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"
	"net/netip"
	"sync"
)

// mostConnections is the greatest number of open connections at an address. The kubelet has one or
// two connections, and each Prometheus has one connection.
const mostConnections = 64

const (
	// connectionsPerSecond is the greatest rate of a client's new connections. Many users of the view
	// can share the address of an API server.
	connectionsPerSecond = 100
	// connectionsAtOnce is the number of connections that an idle client may open at once. A short
	// burst therefore does not affect other programs with the same address.
	connectionsAtOnce = 1000
)

// fair is a listener that bounds the number of open connections, and the rate of a client's new
// connections. fair closes new connections above the rate. Above the number, fair closes the oldest
// connection of the client with the most connections. A client that holds or opens many connections
// thus loses only its own connections.
type fair struct {
	net.Listener
	most  int
	paces *paces

	mu     sync.Mutex
	open   int
	next   uint64
	client map[netip.Addr][]*fairConn // connections of a client, oldest first
}

func newFair(listener net.Listener, most int) *fair {
	return &fair{Listener: listener, most: most, paces: newPaces(connectionsPerSecond, connectionsAtOnce), client: map[netip.Addr][]*fairConn{}}
}

func (f *fair) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr().String())
		if !f.paces.of(client).Allow() {
			abort(conn)
			continue
		}
		c := &fairConn{Conn: conn, fair: f, of: client}
		if worst := f.add(c); worst != nil {
			worst.abort()
		}
		return c, nil
	}
}

// add counts a connection. add returns the connection to close in exchange, or nil.
func (f *fair) add(c *fairConn) *fairConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.number = f.next
	f.next++
	f.client[c.of] = append(f.client[c.of], c)
	f.open++
	if f.open <= f.most {
		return nil
	}
	var worst []*fairConn
	for _, conns := range f.client {
		if len(conns) > len(worst) || len(conns) == len(worst) && conns[0].number < worst[0].number {
			worst = conns
		}
	}
	return worst[0]
}

func (f *fair) remove(c *fairConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	conns := f.client[c.of]
	for i := range conns {
		if conns[i] == c {
			f.open--
			conns = append(conns[:i:i], conns[i+1:]...)
			break
		}
	}
	if len(conns) == 0 {
		delete(f.client, c.of)
		return
	}
	f.client[c.of] = conns
}

// fairConn is a connection that counts until it is closed.
type fairConn struct {
	net.Conn
	fair   *fair
	of     netip.Addr
	number uint64
}

func (c *fairConn) Close() error {
	c.fair.remove(c)
	return c.Conn.Close()
}

// abort closes the connection and discards the data that its client has not read.
func (c *fairConn) abort() {
	c.fair.remove(c)
	abort(c.Conn)
}

func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection is closed in either case
	}
	_ = conn.Close()
}

// clientOf returns the client at an address and port. A client may own all addresses of an IPv6
// /64, so clientOf counts a /64 as one client.
func clientOf(address string) netip.Addr {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // an IPv6 address always has this prefix
		return prefix.Addr()
	}
	return addr
}
