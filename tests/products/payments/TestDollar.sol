// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// A token for tests whose transfers can be signed (EIP-3009). Anybody can mint it. It has no
/// constructor, so that a test can put its code at any address.
contract TestDollar {
    string public constant name = "USDC";
    string public constant symbol = "USDC";
    string public constant version = "2";
    uint8 public constant decimals = 6;
    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(bytes32 => bool)) public authorizationState;

    bytes32 constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 constant TRANSFER = keccak256(
        "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 constant CANCEL = keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");

    event Transfer(address indexed from, address indexed to, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);
    event AuthorizationCanceled(address indexed authorizer, bytes32 indexed nonce);

    function mint(address to, uint256 value) external {
        totalSupply += value;
        balanceOf[to] += value;
        emit Transfer(address(0), to, value);
    }

    function transfer(address to, uint256 value) external returns (bool) {
        _move(msg.sender, to, value);
        return true;
    }

    function transferWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        require(block.timestamp > validAfter, "authorization is not yet valid");
        require(block.timestamp < validBefore, "authorization is expired");
        bytes32 signed = keccak256(abi.encode(TRANSFER, from, to, value, validAfter, validBefore, nonce));
        _use(from, nonce, signed, v, r, s);
        emit AuthorizationUsed(from, nonce);
        _move(from, to, value);
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s) external {
        _use(authorizer, nonce, keccak256(abi.encode(CANCEL, authorizer, nonce)), v, r, s);
        emit AuthorizationCanceled(authorizer, nonce);
    }

    function DOMAIN_SEPARATOR() public view returns (bytes32) {
        return keccak256(
            abi.encode(DOMAIN, keccak256(bytes(name)), keccak256(bytes(version)), block.chainid, address(this))
        );
    }

    function _use(address by, bytes32 nonce, bytes32 signed, uint8 v, bytes32 r, bytes32 s) private {
        require(!authorizationState[by][nonce], "authorization is used or canceled");
        bytes32 digest = keccak256(abi.encodePacked("\x19\x01", DOMAIN_SEPARATOR(), signed));
        require(by != address(0) && ecrecover(digest, v, r, s) == by, "invalid signature");
        authorizationState[by][nonce] = true;
    }

    function _move(address from, address to, uint256 value) private {
        require(balanceOf[from] >= value, "transfer amount exceeds balance");
        balanceOf[from] -= value;
        balanceOf[to] += value;
        emit Transfer(from, to, value);
    }
}

/// Makes several calls in one transaction.
contract Batch {
    function run(address to, bytes[] calldata calls) external {
        for (uint256 i = 0; i < calls.length; i++) {
            (bool done,) = to.call(calls[i]);
            require(done, "a call failed");
        }
    }
}
