// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestQuestions(t *testing.T) {
	for _, q := range []Question{Ping, Processes, Devices} {
		if got, err := ParseQuestion(q.message()); err != nil || got != q {
			t.Errorf("%d became %d, %v", q, got, err)
		}
	}
	longer := append(Ping.message(), 1, 2, 3, 4)
	longer[4], longer[6] = 2, questionSize+4
	if got, err := ParseQuestion(longer); err != nil || got != Ping {
		t.Errorf("a later version: %d, %v", got, err)
	}
}

func FuzzParseQuestion(f *testing.F) {
	f.Add(Processes.message())
	f.Add([]byte("NVGQ"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q, err := ParseQuestion(raw)
		if err == nil && (q < Ping || q > Devices || !IsQuestion(raw)) {
			t.Errorf("%x became %d", raw, q)
		}
	})
}

// agent answers connections one after another, each with the next function.
func agent(t *testing.T, each ...func(net.Conn)) Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "query") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for _, answer := range each {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
		listener.Close()
	}()
	return Client{path}
}

func sends(packets ...[]byte) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 64))
		for _, p := range packets {
			_, _ = conn.Write(p)
		}
	}
}

func hangsUp(net.Conn) {}

func TestClient(t *testing.T) {
	long := strings.Repeat("é", 3*maxPacket)
	whole, err := Answer(Pong{Node: long})
	if err != nil {
		t.Fatal(err)
	}
	later := packet(more, nil)
	binary.LittleEndian.PutUint16(later[4:], 9)
	binary.LittleEndian.PutUint16(later[6:], 7)
	tests := []struct {
		name  string
		agent []func(net.Conn)
		want  string // the node, or
		err   string
	}{
		{"an answer", []func(net.Conn){sends(packet(last, []byte(`{"node":"n"}`)))}, "n", ""},
		{"a long answer", []func(net.Conn){sends(whole...)}, long, ""},
		{"busy at first", []func(net.Conn){hangsUp, hangsUp, sends(packet(last, []byte(`{"node":"n"}`)))}, "n", ""},
		{"refused", []func(net.Conn){sends(Refuse(errors.New("no")))}, "", "the agent refused: no"},
		{"cut off", []func(net.Conn){sends(whole[0])}, "", "does not answer completely"},
		{"no JSON", []func(net.Conn){sends(packet(last, []byte("{")))}, "", "read the agent's answer"},
		{"somebody else", []func(net.Conn){sends([]byte("HTTP/1.1 400 Bad Request"))}, "", "are no answer"},
		{"a later version", []func(net.Conn){sends(later)}, "", "answers in version 9"},
		{"gone meanwhile", []func(net.Conn){hangsUp}, "", "no process listens"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got Pong
			err := agent(t, tt.agent...).Ask(t.Context(), Ping, &got)
			if tt.err == "" && (err != nil || got.Node != tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %.40q, %v", got.Node, err)
			}
		})
	}
}

// TestAgentAway checks that Ask soon returns an error if the agent is absent or hangs.
func TestAgentAway(t *testing.T) {
	err := Client{filepath.Join(t.TempDir(), "none")}.Ask(t.Context(), Ping, new(Pong))
	if !errors.Is(err, ErrAway) || !strings.Contains(err.Error(), "DaemonSet nri-vgpu") {
		t.Errorf("no socket: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	hang := make(chan struct{})
	defer close(hang)
	if err := agent(t, func(net.Conn) { <-hang }).Ask(ctx, Ping, new(Pong)); !errors.Is(err, ErrAway) {
		t.Errorf("an agent that hangs: %v", err)
	}
}
