// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

// A process requests its physical memory on its container's GPUs by one packet, little-endian, in
// the form of a registration:
//
//	0  "NVGH"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  the process's slot on its container's usage page, 4 bytes
//	12 the pid in the process's own pid namespace, 4 bytes
//
// The answer is one packet:
//
//	0  "NVGH"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  number of the following records, 4 bytes
//	12 flags, 4 bytes: 0
//	16 records: a GPU's UUID, 16 bytes, and the process's memory on the GPU, 8 bytes
//
// A GPU whose amount is unknown has no record. If the driver does not answer in time, the server
// closes the connection without an answer.
const (
	heldMagic      = 0x4847564e
	heldVersion    = 1
	heldSize       = 16
	heldRecordSize = 24
)

// heldPatience bounds the wait for the driver. The asker waits at most 20 ms, and a slow server
// must not lengthen the wait.
const heldPatience = 100 * time.Millisecond

// Holdings returns the memory that processes physically hold of GPUs.
type Holdings interface {
	// Of returns the memory that the process holds of each of its container's GPUs, by UUID. The
	// driver measures the memory after the start of the call. The result omits GPUs that the driver
	// does not report. If the driver reports no GPU in time, Of returns an error.
	Of(ctx context.Context, process Process) (map[string]uint64, error)
}

// IsHeldQuestion reports whether a message requests the memory that a process holds.
func IsHeldQuestion(raw []byte) bool {
	return len(raw) >= 4 && binary.LittleEndian.Uint32(raw) == heldMagic
}

// ParseHeldQuestion parses a question about held memory. No decision depends on the question's
// claim.
func ParseHeldQuestion(raw []byte) (Claim, error) { return parseClaim(raw, heldMagic) }

// HeldAnswer returns the packet of the answer. HeldAnswer omits invalid UUIDs.
func HeldAnswer(held map[string]uint64) []byte {
	raw := make([]byte, heldSize, heldSize+heldRecordSize*len(held))
	count := uint32(0)
	for _, uuid := range slices.Sorted(maps.Keys(held)) {
		bytes, ok := uuidBytes(uuid)
		if !ok {
			continue
		}
		raw = append(raw, bytes...)
		raw = binary.LittleEndian.AppendUint64(raw, held[uuid])
		count++
	}
	binary.LittleEndian.PutUint32(raw, heldMagic)
	binary.LittleEndian.PutUint16(raw[4:], heldVersion)
	binary.LittleEndian.PutUint16(raw[6:], uint16(len(raw)))
	binary.LittleEndian.PutUint32(raw[8:], count)
	return raw
}

// uuidBytes parses a UUID of the form "GPU-…" or "MIG-…".
func uuidBytes(uuid string) ([]byte, bool) {
	_, text, _ := strings.Cut(uuid, "-")
	bytes, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	return bytes, err == nil && len(bytes) == 16
}

// hold answers a question about the memory that the caller holds. The caller has a place in the
// queue of such questions.
func (s *Server) hold(ctx context.Context, conn *net.UnixConn, who *caller, raw []byte) {
	if _, err := ParseHeldQuestion(raw); err != nil {
		s.Registry.countInvalid()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, heldPatience)
	defer cancel()
	held, err := s.Holdings.Of(ctx, who.Process)
	switch {
	case err != nil:
		s.Registry.countHeld(Unanswered)
	case s.ended(who): // another process may have the caller's pid
		s.Registry.countHeld(Gone)
	default:
		s.Registry.countHeld(Answered)
		send(conn, HeldAnswer(held))
	}
}

// ended reports whether a caller has ended.
func (s *Server) ended(who *caller) bool {
	if !who.known {
		return who.handle.Ended()
	}
	now, ok := s.Registry.known(who.PID)
	return !ok || now.Started != who.Started
}

// mayHold reports whether the server accepts a caller's question about the memory that the caller
// holds. For an accepted question, mayHold takes a place in the queue.
func (s *Server) mayHold(container string) bool {
	if s.Holdings == nil || !s.holding.mayAsk(container, heldBounds) || !s.holding.enter(container, heldBounds) {
		s.Registry.countHeld(Busy)
		return false
	}
	return true
}
