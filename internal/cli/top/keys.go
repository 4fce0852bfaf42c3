// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"io"
	"strings"
)

// key is the input of a key: a character or an escape sequence.
type key string

const (
	keyUp       key = "\x1b[A"
	keyDown     key = "\x1b[B"
	keyPageUp   key = "\x1b[5~"
	keyPageDown key = "\x1b[6~"
)

// readKeys sends keys to a channel until the input ends.
func readKeys(ctx context.Context, in io.Reader, keys chan<- key) {
	defer close(keys)
	raw := make([]byte, 64)
	for {
		n, err := in.Read(raw)
		for _, k := range split(string(raw[:n])) {
			select {
			case keys <- k:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// split splits input into keys. A single escape and an unknown sequence each
// become a key without effect.
func split(raw string) []key {
	var keys []key
	for raw != "" {
		k := next(raw)
		raw = raw[len(k):]
		// Terminals in application mode send \x1bO in place of \x1b[ for arrows.
		keys = append(keys, key(strings.Replace(k, "\x1bO", "\x1b[", 1)))
	}
	return keys
}

func next(raw string) string {
	if len(raw) < 3 || raw[0] != '\x1b' || raw[1] != '[' && raw[1] != 'O' {
		return raw[:1]
	}
	for i := 2; i < len(raw); i++ {
		if raw[i] >= 0x40 && raw[i] <= 0x7e { // the last byte of a sequence
			return raw[:i+1]
		}
	}
	return raw
}
