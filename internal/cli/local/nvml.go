// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const (
	// nvmlProgram queries NVML, which a static program cannot load. nvmlProgram is
	// installed beside the interposer.
	nvmlProgram = "vgpu-nvml"
	// nvmlPatience is the time-out of a query. The first query includes the start
	// of NVML.
	nvmlPatience = 10 * time.Second
)

// nvml queries NVML through one process for each GPU. A hung query blocks no other
// GPU.
type nvml struct {
	program string

	mu    sync.Mutex
	peers map[string]*nvmlPeer
	ended bool
}

func newNVML(lib string) *nvml {
	return &nvml{program: filepath.Join(lib, nvmlProgram), peers: map[string]*nvmlPeer{}}
}

// Held returns the processes of a GPU and the bytes that each process holds.
func (n *nvml) Held(uuid string) (gpu.HeldBytes, error) {
	answer, err := n.ask(uuid, "processes")
	if err != nil {
		return nil, err
	}
	return parseHeld(answer)
}

// parseHeld parses "PID BYTES PID BYTES …".
func parseHeld(answer string) (gpu.HeldBytes, error) {
	fields := strings.Fields(answer)
	held := gpu.HeldBytes{}
	for ; len(fields) >= 2; fields = fields[2:] {
		if fields[1] == "?" {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		bytes, bytesErr := strconv.ParseUint(fields[1], 10, 64)
		if err = errors.Join(err, bytesErr); err != nil {
			return nil, fmt.Errorf("read NVML's list of processes: %w", err)
		}
		held[pid] += bytes
	}
	if len(fields) > 0 {
		return nil, fmt.Errorf("read NVML's list of processes: %q is incomplete", answer)
	}
	return held, nil
}

// Used returns the used bytes of a GPU, including the bytes of other programs.
func (n *nvml) Used(uuid string) (uint64, error) {
	answer, err := n.ask(uuid, "used")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(answer, 10, 64)
}

// ask queries a GPU. ask kills a process that does not answer in time; the next
// query starts a new process.
func (n *nvml) ask(uuid, verb string) (string, error) {
	peer, err := n.peer(uuid)
	if err != nil {
		return "", err
	}
	timer := time.AfterFunc(nvmlPatience, peer.kill)
	defer timer.Stop()
	answer, err := peer.ask(verb + " " + uuid)
	if err != nil {
		n.drop(uuid, peer)
		return "", fmt.Errorf("query NVML: %w", err)
	}
	text, ok := strings.CutPrefix(answer, "ok")
	if !ok {
		return "", fmt.Errorf("query NVML: %s", strings.TrimPrefix(answer, "error "))
	}
	return strings.TrimSpace(text), nil
}

func (n *nvml) peer(uuid string) (*nvmlPeer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return nil, errors.New("query NVML: the connection is closed")
	}
	if peer := n.peers[uuid]; peer != nil {
		return peer, nil
	}
	peer, err := startPeer(n.program)
	if err != nil {
		return nil, fmt.Errorf("query NVML: %w", err)
	}
	n.peers[uuid] = peer
	return peer, nil
}

func (n *nvml) drop(uuid string, peer *nvmlPeer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.peers[uuid] == peer {
		delete(n.peers, uuid)
	}
	peer.kill()
}

func (n *nvml) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for uuid, peer := range n.peers {
		delete(n.peers, uuid)
		peer.kill()
	}
}

// nvmlPeer is a process that queries NVML.
type nvmlPeer struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	mu      sync.Mutex // held from a question to its answer
	reap    sync.Once
}

func startPeer(program string) (*nvmlPeer, error) {
	p := &nvmlPeer{command: exec.Command(program)}
	p.command.Env = watcherEnvironment(os.Environ())
	var err error
	if p.in, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 128<<10)
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *nvmlPeer) ask(question string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintln(p.in, question); err != nil {
		return "", err
	}
	line, err := p.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// kill ends the process. A caller that waits for an answer gets an error.
func (p *nvmlPeer) kill() {
	p.in.Close()
	_ = p.command.Process.Kill()
	p.reap.Do(func() { go func() { _ = p.command.Wait() }() })
}
