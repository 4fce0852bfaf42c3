package registry

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"net"
	"slices"
	"strings"
	"time"
)

// A process asks what it physically holds of its container's GPUs, in one packet,
// little-endian, of the same form as a registration:
//
//	0  "NVGH"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  the slot that it holds on its container's usage page, 4 bytes
//	12 its pid, as itself knows it, 4 bytes
//
// The answer is one packet, too:
//
//	0  "NVGH"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  how many records follow, 4 bytes
//	12 flags, 4 bytes: 0
//	16 records: a GPU's UUID, 16 bytes, and what the process holds there, 8 bytes
//
// A GPU on which that is not known has no record. Where the driver does not answer
// in time, nothing is sent, and the connection closed.
const (
	heldMagic      = 0x4847564e
	heldVersion    = 1
	heldSize       = 16
	heldRecordSize = 24
)

// heldPatience bounds the wait for the driver: who asks waits 20 ms at most, and a
// server that is late by itself should not add to it.
const heldPatience = 100 * time.Millisecond

// Holdings knows what processes physically hold of GPUs.
type Holdings interface {
	// Of returns what the process holds of each of its container's GPUs, by UUID, as
	// the driver tells now: not before the call. GPUs of which it does not tell are
	// missing; it is an error where it tells of none in time.
	Of(ctx context.Context, process Process) (map[string]uint64, error)
}

// IsHeldQuestion reports whether a message is a question about what a process holds.
func IsHeldQuestion(raw []byte) bool {
	return len(raw) >= 4 && binary.LittleEndian.Uint32(raw) == heldMagic
}

// ParseHeldQuestion reads such a question. Nothing is decided by what it claims.
func ParseHeldQuestion(raw []byte) (Claim, error) { return parseClaim(raw, heldMagic) }

// HeldAnswer is the answer. UUIDs that are none are left out.
func HeldAnswer(held map[string]uint64) []byte {
	raw := make([]byte, heldSize, heldSize+heldRecordSize*len(held))
	count := uint32(0)
	for _, uuid := range sortedKeys(held) {
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

func sortedKeys(held map[string]uint64) []string {
	keys := make([]string, 0, len(held))
	for key := range held {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// uuidBytes reads "GPU-…" or "MIG-…".
func uuidBytes(uuid string) ([]byte, bool) {
	_, text, _ := strings.Cut(uuid, "-")
	bytes, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	return bytes, err == nil && len(bytes) == 16
}

// hold answers a question about what the caller holds. The caller has been given a
// place in the queue of those.
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
	case s.ended(who): // and its pid may be another's
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

// mayHold reports whether a caller's question about what it holds is heard, and gives it
// a place in the queue if so.
func (s *Server) mayHold(container string) bool {
	if s.Holdings == nil || !s.holding.mayAsk(container, heldBounds) || !s.holding.enter(container, heldBounds) {
		s.Registry.countHeld(Busy)
		return false
	}
	return true
}
