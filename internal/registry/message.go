// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A process registers with a message of one packet, little-endian:
//
//	0  "NVGR"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  the process's slot on its container's usage page, 4 bytes
//	12 the pid in the process's own pid namespace, 4 bytes
//
// interposer/src/pages/registration.c writes the message. A later version may be longer, and the
// server ignores the additional bytes.
const (
	messageMagic   = 0x5247564e
	messageVersion = 1
	messageSize    = 16
	// maxMessage bounds the bytes of a message.
	maxMessage = 64
)

// ErrMessage means that a registration is malformed.
var ErrMessage = errors.New("not a registration")

// Claim is a process's report about itself. The claim may be false, so no limit depends on the
// claim.
type Claim struct {
	// Slot is the process's slot on its container's usage page.
	Slot uint32
	// InnerPID is the process's pid in its own pid namespace.
	InnerPID uint32
}

// ParseMessage parses a registration.
func ParseMessage(raw []byte) (Claim, error) { return parseClaim(raw, messageMagic) }

// parseClaim parses a message in the form of a registration.
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
