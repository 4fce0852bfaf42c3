package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What a process says when it registers, in one packet, little-endian:
//
//	0  "NVGR"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  the slot that it holds on its container's usage page, 4 bytes
//	12 its pid, as itself knows it, 4 bytes
//
// interposer/src/registration.c says it. A later version may be longer; what it
// has beyond these is not read.
const (
	messageMagic   = 0x5247564e
	messageVersion = 1
	messageSize    = 16
	// maxMessage bounds what is read of one.
	maxMessage = 64
)

// ErrMessage is what is said of a message that is none.
var ErrMessage = errors.New("not a registration")

// Claim is what a process says of itself. It may be a lie: nothing is decided
// by it.
type Claim struct {
	// Slot is the process's on its container's usage page.
	Slot uint32
	// InnerPID is the process's as itself knows it.
	InnerPID uint32
}

// ParseMessage reads a registration.
func ParseMessage(raw []byte) (Claim, error) { return parseClaim(raw, messageMagic) }

// parseClaim reads a message of the form that registrations have.
func parseClaim(raw []byte, want uint32) (Claim, error) {
	if len(raw) < messageSize || len(raw) > maxMessage {
		return Claim{}, fmt.Errorf("%w: %d bytes", ErrMessage, len(raw))
	}
	if magic := binary.LittleEndian.Uint32(raw); magic != want {
		return Claim{}, fmt.Errorf("%w: it begins with %#x", ErrMessage, magic)
	}
	version, size := binary.LittleEndian.Uint16(raw[4:]), binary.LittleEndian.Uint16(raw[6:])
	if version < messageVersion || int(size) != len(raw) {
		return Claim{}, fmt.Errorf("%w: version %d of %d bytes, and it has %d", ErrMessage, version, size, len(raw))
	}
	return Claim{Slot: binary.LittleEndian.Uint32(raw[8:]), InnerPID: binary.LittleEndian.Uint32(raw[12:])}, nil
}
