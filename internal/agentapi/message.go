// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// A question is one packet, little-endian:
//
//	0  "NVGQ"
//	4  version, 2 bytes
//	6  size of the message, 2 bytes
//	8  the question, 2 bytes
//	10 0, 6 bytes
//
// An answer is one packet or more, of at most maxPacket bytes:
//
//	0  "NVGA"
//	4  version, 2 bytes
//	6  kind, 2 bytes: a piece before the last, the last piece, or an error
//	8  the next piece of the answer, JSON; or the error, text
const (
	questionMagic = 0x5147564e
	answerMagic   = 0x4147564e
	// Version is the version of questions and answers. A later version may have longer messages; a
	// receiver ignores the additional bytes.
	Version      = 1
	questionSize = 16
	headerSize   = 8
	maxPacket    = 16 << 10
	// maxAnswer bounds the answer that a client accepts.
	maxAnswer = 64 << 20
	// maxError bounds an error's text.
	maxError = 1 << 10
)

type kind uint16

const (
	more    kind = 1
	last    kind = 2
	refusal kind = 3
)

// ErrQuestion means that a message is not a question.
var ErrQuestion = errors.New("not a question")

// IsQuestion reports whether a message begins as a question.
func IsQuestion(raw []byte) bool {
	return len(raw) >= 4 && binary.LittleEndian.Uint32(raw) == questionMagic
}

// ParseQuestion parses a message.
func ParseQuestion(raw []byte) (Question, error) {
	if len(raw) < questionSize || !IsQuestion(raw) {
		return 0, fmt.Errorf("%w: %d bytes", ErrQuestion, len(raw))
	}
	version, size := binary.LittleEndian.Uint16(raw[4:]), binary.LittleEndian.Uint16(raw[6:])
	if version < 1 || int(size) != len(raw) {
		return 0, fmt.Errorf("%w: version %d of %d bytes, and it has %d", ErrQuestion, version, size, len(raw))
	}
	question := Question(binary.LittleEndian.Uint16(raw[8:]))
	if question < Ping || question > All {
		return 0, fmt.Errorf("%w that this agent knows: question %d of version %d", ErrQuestion, question, version)
	}
	return question, nil
}

func (q Question) message() []byte {
	raw := make([]byte, questionSize)
	binary.LittleEndian.PutUint32(raw, questionMagic)
	binary.LittleEndian.PutUint16(raw[4:], Version)
	binary.LittleEndian.PutUint16(raw[6:], questionSize)
	binary.LittleEndian.PutUint16(raw[8:], uint16(q))
	return raw
}

func packet(k kind, content []byte) []byte {
	raw := make([]byte, headerSize, headerSize+len(content))
	binary.LittleEndian.PutUint32(raw, answerMagic)
	binary.LittleEndian.PutUint16(raw[4:], Version)
	binary.LittleEndian.PutUint16(raw[6:], uint16(k))
	return append(raw, content...)
}

// Answer returns the packets of an answer.
func Answer(answer any) ([][]byte, error) {
	content, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	var packets [][]byte
	for len(content) > maxPacket-headerSize {
		packets = append(packets, packet(more, content[:maxPacket-headerSize]))
		content = content[maxPacket-headerSize:]
	}
	return append(packets, packet(last, content)), nil
}

// Refuse returns the packet that carries the reason of a refusal.
func Refuse(why error) []byte {
	text := why.Error()
	return packet(refusal, []byte(text[:min(len(text), maxError)]))
}

// RefusedError is a refusal by the agent.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return "the agent refused: " + e.Message }

// answer collects the packets of an answer.
type answer struct {
	content  []byte
	complete bool
}

func (a *answer) add(raw []byte) error {
	if len(raw) < headerSize || binary.LittleEndian.Uint32(raw) != answerMagic {
		return fmt.Errorf("the agent's socket sent %d bytes that are no answer: check which program listens there", len(raw))
	}
	content := raw[headerSize:]
	switch kind(binary.LittleEndian.Uint16(raw[6:])) {
	case refusal:
		return &RefusedError{string(content[:min(len(content), maxError)])}
	case last:
		a.complete = true
	case more:
	default:
		return fmt.Errorf("the agent answers in version %d, and this program reads version %d: use the program of the agent's release",
			binary.LittleEndian.Uint16(raw[4:]), Version)
	}
	if len(a.content)+len(content) > maxAnswer {
		return fmt.Errorf("the agent's answer is longer than %d bytes", maxAnswer)
	}
	a.content = append(a.content, content...)
	return nil
}
