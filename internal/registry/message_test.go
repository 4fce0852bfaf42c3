// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/binary"
	"testing"
)

// message returns a registration in the form in which a process of this version sends it.
func message(slot, pid uint32) []byte {
	raw := []byte("NVGR\x01\x00\x10\x00")
	raw = binary.LittleEndian.AppendUint32(raw, slot)
	return binary.LittleEndian.AppendUint32(raw, pid)
}

// ofLength returns a message of a later version.
func ofLength(length int) []byte {
	raw := append(message(3, 42), make([]byte, length-16)...)
	raw[4], raw[6] = 2, byte(length)
	return raw
}

func TestParseMessage(t *testing.T) {
	good := message(3, 42)
	for name, tt := range map[string]struct {
		raw  []byte
		good bool
	}{
		"this version's":    {good, true},
		"a later one's":     {ofLength(20), true},
		"none":              {nil, false},
		"cut off":           {good[:messageSize-1], false},
		"as long as may be": {ofLength(64), true},
		"too long":          {ofLength(65), false},
		"another magic":     {append([]byte("GET "), good[4:]...), false},
		"another size":      {append(message(3, 42), 0), false},
		"version 0":         {append([]byte("NVGR\x00\x00\x10\x00"), good[8:]...), false},
	} {
		claim, err := ParseMessage(tt.raw)
		if (err == nil) != tt.good || tt.good && claim != (Claim{Slot: 3, InnerPID: 42}) {
			t.Errorf("%s: got %+v, %v", name, claim, err)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add(message(0, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		claim, err := ParseMessage(raw)
		if err == nil && (len(raw) < messageSize || claim.Slot != binary.LittleEndian.Uint32(raw[8:])) {
			t.Errorf("%x became %+v", raw, claim)
		}
	})
}

func FuzzParseCgroups(f *testing.F) {
	f.Add("0::/kubepods/besteffort/pod" + uid + "/" + id + "\n")
	f.Fuzz(func(t *testing.T, content string) {
		if place := ParseCgroups(content); place.PodUID == "" && place.Container != "" {
			t.Errorf("%q is a container without a pod: %+v", content, place)
		}
	})
}
