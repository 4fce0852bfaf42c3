// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// answers sends to each asker the asker's identity, and records all askers.
type answers struct {
	mu   sync.Mutex
	seen []Asker
	long int // bytes of the answer
}

func (a *answers) Answer(_ context.Context, who Asker, question agentapi.Question) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, who)
	if question == agentapi.Devices {
		return nil, errors.New("this container has no GPU")
	}
	return agentapi.Pong{Node: who.PodUID + "/" + who.Container, Version: strings.Repeat("x", a.long)}, nil
}

func (a *answers) answerWith(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.long = bytes
}

func (a *answers) asked() []Asker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Asker{}, a.seen...)
}

// questions returns a test server that treats the test's process as a container's process, and
// answers its questions.
func questions(t *testing.T) (*house, *answers) {
	t.Helper()
	h, a := newHouse(t), &answers{}
	h.Answers = a
	h.contain(os.Getpid(), id)
	h.serve()
	return h, a
}

func (h *house) ask(question agentapi.Question) (agentapi.Pong, error) {
	var pong agentapi.Pong
	return pong, agentapi.Client{Socket: h.Path}.Ask(h.Context(), question, &pong)
}

func TestTheKernelIdentifiesTheAsker(t *testing.T) {
	h, a := questions(t)
	pong, err := h.ask(agentapi.Ping)
	if err != nil || pong.Node != uid+"/"+id {
		t.Errorf("got %+v, %v", pong, err)
	}
	want := []Asker{{PodUID: uid, Container: id}}
	if diff := cmp.Diff(want, a.asked()); diff != "" {
		t.Error(diff)
	}
	if _, err := h.ask(agentapi.Devices); err == nil || !strings.Contains(err.Error(), "this container has no GPU") {
		t.Errorf("got %v", err)
	}
	if counts := h.Registry.counts(); len(counts) != 0 {
		t.Errorf("a process that only sent a query is registered: %v", counts)
	}
}

func TestALongAnswerArrivesWhole(t *testing.T) {
	h, a := questions(t)
	const long = 500_000
	a.answerWith(long)
	pong, err := h.ask(agentapi.Ping)
	if err != nil || len(pong.Version) != long {
		t.Errorf("got %d bytes, %v", len(pong.Version), err)
	}
}

// answered writes bytes to a socket, and returns the answer.
func (h *house) answered(conn net.Conn, raw []byte) string {
	h.Helper()
	if _, err := conn.Write(raw); err != nil && !errors.Is(err, syscall.EPIPE) {
		h.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	answer := make([]byte, 64<<10)
	n, err := conn.Read(answer)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		h.Fatalf("no answer to %q: %v", raw, err)
	}
	return string(answer[:n])
}

// TestWhatIsNoQuestionGetsAnError checks that a message that is neither a question nor a
// registration gets an error and changes nothing.
func TestWhatIsNoQuestionGetsAnError(t *testing.T) {
	h, a := questions(t)
	question := []byte("NVGQ\x01\x00\x10\x00\x02\x00\x00\x00\x00\x00\x00\x00")
	with := func(at int, value byte) []byte {
		raw := bytes.Clone(question)
		raw[at] = value
		return raw
	}
	for name, raw := range map[string][]byte{
		"a byte":                  {0},
		"HTTP":                    []byte("GET / HTTP/1.1\r\n\r\n"),
		"a lot":                   bytes.Repeat([]byte("kill 1 "), 10_000),
		"a question, cut off":     question[:15],
		"a question's magic":      question[:4],
		"a question and more":     append(bytes.Clone(question), question...),
		"of version 0":            with(4, 0),
		"that nobody knows":       with(8, 5),
		"number 0":                with(8, 0),
		"a registration, cut off": message(1, 2)[:15],
	} {
		got := h.answered(h.dial(), raw)
		if !strings.HasPrefix(got, "NVGA\x01\x00\x03\x00") || !strings.Contains(got, "not a ") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if seen := a.asked(); len(seen) != 0 {
		t.Errorf("answers were made for %+v", seen)
	}
	if counts := h.Registry.counts(); len(counts) != 0 {
		t.Errorf("registered are %v", counts)
	}
	// The server answers a question of a later version if this version has the kind of question.
	if got := h.answered(h.dial(), with(4, 2)); !strings.HasPrefix(got, "NVGA\x01\x00\x02\x00{") {
		t.Errorf("version 2: got %q", got)
	}
}

func TestOutsideOfContainersNothingIsAnswered(t *testing.T) {
	h, a := newHouse(t), &answers{}
	h.Answers, h.Proc = a, HostProc
	h.serve()
	if _, err := h.ask(agentapi.Ping); err == nil || !strings.Contains(err.Error(), "root on the node uses another socket") {
		t.Errorf("got %v", err)
	}
	if seen := a.asked(); len(seen) != 0 {
		t.Errorf("answers were made for %+v", seen)
	}
}

// TestTooManyQuestions checks that a container that asks too often gets an error. Other containers
// may still ask.
func TestTooManyQuestions(t *testing.T) {
	h, _ := questions(t)
	refused := 0
	for range 2 * questionBurst {
		if _, err := h.ask(agentapi.Ping); err != nil {
			if !strings.Contains(err.Error(), "too many queries: the limit of a container is 10 per second") {
				t.Fatal(err)
			}
			refused++
		}
	}
	if refused == 0 {
		t.Error("none was too many")
	}
	if !h.queue.mayAsk(otherID, askBounds) {
		t.Error("another container may not ask")
	}
	eventually.Holds(h.T, patience, "it is forgotten", func() bool {
		h.queue.mu.Lock()
		defer h.queue.mu.Unlock()
		return len(h.queue.paces) == 0
	})
	if _, err := h.ask(agentapi.Ping); err != nil {
		t.Error(err)
	}
}

// TestSlowReaders checks that a client that does not read its answer delays no other client, and
// that the server disconnects the client.
func TestSlowReaders(t *testing.T) {
	h, a := questions(t)
	a.answerWith(4 << 20)
	for range questionBurst {
		if _, err := h.dial().Write([]byte("NVGQ\x01\x00\x10\x00\x01\x00\x00\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(h.T, patience, "answers are on their way", func() bool { return len(a.asked()) > 0 })
	defer h.register(otherID)()
	eventually.Holds(h.T, patience, "another one is known", func() bool { return len(h.Registry.Processes(otherID)) == 1 })
	eventually.Holds(h.T, patience, "nobody waits for them any more", func() bool { return h.queue.open() == 0 })
}

func TestTheNodesRootAsksAtAnotherSocket(t *testing.T) {
	h, a := newHouse(t), &answers{}
	admin := &Admin{Path: filepath.Join(filepath.Dir(h.Path), "..", "admin.sock"), Answers: a, Log: h.Log}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { admin.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually.Holds(h.T, patience, "the socket is there", func() bool {
		info, err := os.Stat(admin.Path)
		return err == nil && info.Mode().Perm() == 0o600
	})
	var pong agentapi.Pong
	if err := (agentapi.Client{Socket: admin.Path}).Ask(t.Context(), agentapi.Ping, &pong); err != nil || pong.Node != "/" {
		t.Errorf("got %+v, %v", pong, err)
	}
	if diff := cmp.Diff([]Asker{{Node: true}}, a.asked()); diff != "" {
		t.Error(diff)
	}
	conn, err := net.Dial("unixpacket", admin.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := h.answered(conn, message(1, 2)); !strings.Contains(got, agentapi.ErrQuestion.Error()) {
		t.Errorf("a registration got %q", got)
	}
}
